"""The programs and the notebook of examples/, in short form: they run, and what they print holds."""

import pathlib
import re
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs an example with these words and returns what it prints."""
    pytest.importorskip("transformers")

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        capfd.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capfd.readouterr().out

    return run


def test_every_example_is_listed_and_tested():
    listed = (EXAMPLES / "README.md").read_text()
    tested = pathlib.Path(__file__).read_text()
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        assert f"({path.name})" in listed and f'"{path.name}"' in tested, path.name


def test_a_layer_learns_to_remember(run):
    out = run("train_layer.py", "--steps", 50)
    right = [float(x) for x in re.findall(r"right ([0-9.]+)%", out)]
    assert right[0] < 25 and right[1] > 50, out  # guessing is 12.5%


def test_generated_text_is_the_programs(run, capfd):
    out = run("generate.py", "--tokens", 12)
    greedy = out.split("sampled")[0]
    import ctypes

    import cyfa

    words = ["cyfa", "generate", str(ROOT / "models/cyfa-4m"), "-p", "The history of the city", "-n", "12", "-q"]
    program = ctypes.CDLL(str(cyfa.library)).cyfa_program
    assert program(len(words), (ctypes.c_char_p * (len(words) + 1))(*map(str.encode, words))) == 0
    assert " ".join(capfd.readouterr().out.split()) in " ".join(greedy.split())
    assert re.search(r"10,000 tokens alike are remembered in \d+ KiB", out)


def test_attention_is_replaced(run):
    out = run("replace_attention.py", "--steps", 5)
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+) after 5", out)]
    assert len(losses) == 3 and max(losses) < 5.5, out  # 256 equal bytes are 5.55


def test_fine_tuning_lowers_the_loss(run, tmp_path):
    out = run("finetune.py", tmp_path / "model", "--steps", 4, "--length", 64)
    before, after = map(float, re.search(r"held out: ([0-9.]+) before, ([0-9.]+) after", out).groups())
    assert after < before, out
    assert "Alice thought" in out
    assert "Alice" in run("generate.py", tmp_path / "model", "--prompt", "Alice", "--tokens", 4)


def test_evaluation(run):
    pytest.importorskip("lm_eval")
    out = run("evaluate.py", "--limit", 4)
    bits = float(re.search(r"bits_per_byte +([0-9.]+)", out)[1])
    assert 1.5 < bits < 3, out
    assert re.search(r"alice_continuation +acc_norm +[0-9.]+ \+- [0-9.]+", out), out


def test_the_notebook_runs_and_its_pictures_are_kept(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    for folder in ("models", "data"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "examples").mkdir()
    notebook = nbformat.read(EXAMPLES / "memory.ipynb", 4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "memory.ipynb has outputs; clear them"
    where = {"metadata": {"path": str(tmp_path / "examples")}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    drawn = {path.name for path in (tmp_path / "examples/images").iterdir()}
    kept = {path.name for path in (EXAMPLES / "images").iterdir()}
    assert drawn == kept
    assert all(f"images/{name}" in (EXAMPLES / "README.md").read_text() for name in kept)
