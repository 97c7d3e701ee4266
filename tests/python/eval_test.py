"""cyfa eval against lm-evaluation-harness: its own tasks, scored by transformers' own LLaMA in float32 on the same files."""

import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DISABLE_MULTIPROC": "1", "TOKENIZERS_PARALLELISM": "false"}

import datasets
import lm_eval
import pytest
import sentencepiece
import torch
from cyfa import hf
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from shared_folder import shared_folder  # noqa: E402: found by the line above

PIECES = ROOT / "models/cyfa-4m/tokenizer.model"
LENGTH = 512
# The data set that a task of lm-evaluation-harness asks for, and the file that cyfa eval reads in its place.
SETS = {
    ("allenai/ai2_arc", "ARC-Easy"): "arc_easy",
    ("allenai/ai2_arc", "ARC-Challenge"): "arc_challenge",
    ("Rowan/hellaswag", None): "hellaswag",
    ("baber/piqa", None): "piqa",
    ("allenai/winogrande", "winogrande_xl"): "winogrande",
    ("EleutherAI/lambada_openai", "default"): "lambada_openai",
    ("cimec/lambada", None): "lambada_standard",
    ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"): "wikitext",
}
TASKS = list(SETS.values())


class Pieces:
    """A SentencePiece tokenizer as HFLM uses one: BOS in front of every text, as Mistral's and LLaMA's tokenizers put it."""

    def __init__(self):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
        self.bos_token_id, self.eos_token_id = self.model.bos_id(), self.model.eos_id()
        self.pad_token_id, self.vocab_size, self.bos_token, self.name_or_path = 0, self.model.vocab_size(), "<s>", "pieces"

    def encode(self, text, add_special_tokens=True):
        return [self.bos_token_id] * add_special_tokens + self.model.encode(text)

    def decode(self, ids, **_):
        return self.model.id_to_piece(ids) if isinstance(ids, int) else self.model.decode(ids)


def hflm(model, tokenizer):
    """HFLM demands a tokenizer of transformers; what it uses of one is what Pieces has."""
    judge = HFLM(pretrained=model, tokenizer=hf.byte_tokenizer(), backend="causal", batch_size=3, max_length=LENGTH)
    if tokenizer is not None:
        judge.tokenizer, judge.vocab_size = tokenizer, tokenizer.vocab_size
    return judge


def words(draw, count):
    names = "the a cat trophy suitcase Fire won't 3,000 jumps over Seoul quickly; é naïve — because big small".split()
    return " ".join(draw.choice(names) for _ in range(count))


def small_sets():
    """Rows in the public formats, with what is awkward in the real sets: outer spaces, marks of WikiHow, three to five choices."""
    draw = random.Random(5)
    rows = {name: [] for name in TASKS}
    for i in range(12):
        for name in ("arc_easy", "arc_challenge"):
            labels = list("12345" if i % 3 else "ABCD")[: 3 + i % 3]
            choices = {"text": [words(draw, draw.randint(1, 4)) for _ in labels], "label": labels}
            rows[name].append({"question": words(draw, 8) + "?", "choices": choices, "answerKey": draw.choice(labels)})
        endings = [f"[step] {words(draw, 5)}", words(draw, 7) + " [title] so", words(draw, 3), "  two  spaces   " + words(draw, 30)]
        rows["hellaswag"].append(
            {"activity_label": "Roof [x]", "ctx_a": words(draw, 9), "ctx_b": "éThe Man", "endings": endings, "label": str(i % 4)}
        )
        rows["piqa"].append({"goal": words(draw, 4), "sol1": words(draw, 3) + " ", "sol2": " " + words(draw, 3), "label": i % 2})
        blank = f"{words(draw, 5)} _ {words(draw, 5)}. "
        rows["winogrande"].append({"sentence": blank, "option1": "cat", "option2": "the trophy", "answer": str(1 + i % 2)})
        for name in ("lambada_openai", "lambada_standard"):
            rows[name].append({"text": words(draw, 450 if i == 5 else 12) + ("\nlast" if i % 4 == 0 else "")})
    for i in range(3):
        page = f" = {words(draw, 2)} = \n \n {words(draw, 250)} 1 @,@ 000 ( a ) , \" b \" 's . \n"
        page += f" = = {words(draw, 1)} = = \n {words(draw, 9)} \n"
        rows["wikitext"].append({"page": page})
    return rows


def shared_sets():
    """The full sets of the shared folder in the public formats, for the harness; the files themselves are cyfa's."""
    folder = shared_folder() / "eval"

    def text(name):
        return subprocess.run(["zstd", "-dc", folder / f"{name}.zst"], capture_output=True, check=True).stdout.decode()

    def lines(name):
        return [json.loads(line) for line in text(f"{name}.jsonl").split("\n") if line]

    def arc(row):
        labels = "ABCDE"[: len(row["choices"])]
        question = row["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
        return {"question": question, "choices": {"text": row["choices"], "label": list(labels)}, "answerKey": labels[row["gold"]]}

    rows = {name: list(map(arc, lines(name))) for name in ("arc_easy", "arc_challenge")}
    rows |= {"hellaswag": lines("hellaswag_valid"), "winogrande": lines("winogrande_xl_valid"), "lambada_openai": lines("lambada_test")}
    rows["piqa"] = [row | {"label": int(label)} for row, label in zip(lines("piqa_valid"), text("piqa_valid_labels.txt").split())]
    pages, page = [], []
    for line in text("wikitext2_test.raw").split("\n"):
        bare = line.replace("= = =", "===").replace("= =", "==").strip()
        if bare.startswith("= ") and bare.endswith(" ="):
            pages, page = pages + ["\n".join(page)] * bool("\n".join(page).strip()), []
        page.append(line)
    rows["wikitext"] = [{"page": page} for page in [*pages, "\n".join(page)]]
    assert len(rows["wikitext"]) == 62
    return rows


def harness(judge, rows, limit, monkeypatch):
    def load_dataset(path, name=None, **_):
        parts = datasets.Dataset.from_list(rows[SETS[path, name]])
        return datasets.DatasetDict({split: parts for split in ("train", "validation", "test")})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    tasks = [name for name in TASKS if name in rows]
    found = lm_eval.simple_evaluate(judge, tasks=tasks, limit=limit)
    results = found["results"]
    figures = {(task, key.removesuffix(",none")): value for task in tasks for key, value in results[task].items() if ",none" in key}
    return figures, found["samples"]


def each_document(judge_samples, ours):
    """The log-likelihoods of every request, from the harness's samples and from the file in which cyfa keeps documents."""
    kept = {row["document"]: row["log_likelihoods"] for row in map(json.loads, ours.read_text().splitlines()[1:])}
    assert sorted(kept) == sorted({sample["doc_id"] for sample in judge_samples})
    for sample in judge_samples:
        theirs = [float(r[0] if isinstance(r, (list, tuple)) else r) for r in (x[0] for x in sample["resps"])]
        assert kept[sample["doc_id"]] == pytest.approx(theirs, rel=2e-5), sample["doc"]


def llama(folder, vocabulary, bos, eos, extra):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        initializer_range=0.1,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | extra))
    return model


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def judged(request, tmp_path_factory):
    """A LLaMA with random weights: its folder, and the harness's view of it."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "bytes":
        return folder, hflm(llama(folder, 258, 256, 257, {"tokenizer": "bytes"}), None)
    (folder / "tokenizer.model").write_bytes(PIECES.read_bytes())
    tokenizer = Pieces()
    return folder, hflm(llama(folder, tokenizer.vocab_size, 1, 2, {}), tokenizer)


def printed(value):
    """A figure as cyfa prints it: five significant digits, at most four behind the point."""
    if not abs(value) < 1e5:
        return f"{value:.4e}"
    before = 1 if abs(value) < 1 else math.floor(math.log10(abs(value))) + 1
    return f"{value:.{min(max(5 - before, 0), 4)}f}"


def cyfa(folder, *arguments):
    command = [os.environ["CYFA_PROGRAM"], "eval", folder, *arguments, "-q"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout


def compare(folder, data, wanted, samples, tasks, tmp_path, *arguments):
    out = tmp_path / "rows.json"
    table = cyfa(folder, *tasks, "--data", data, "--json", out, "--out", tmp_path / "out", *arguments)
    for task in tasks:
        each_document(samples[task], tmp_path / f"out/samples_{task}.jsonl")
    shown, task = {}, None
    for line in table.splitlines()[1:]:
        cells = line.split()
        task, cells = (task, cells) if line.startswith(" ") else (cells[0], cells[1:])
        shown[task, cells[0]] = cells[1:]
    rows = [row for row in json.loads(out.read_text()) if row["table"] == "results" and row["task"] in tasks]
    assert {(row["task"], row["metric"]) for row in rows} == {(task, name) for task, name in wanted if not name.endswith("_stderr")}
    for row in rows:
        key = row["task"], row["metric"]
        theirs, error = wanted[key], wanted[key[0], key[1] + "_stderr"]
        assert row["value"] == pytest.approx(theirs, rel=2e-5), key
        assert shown[key][0] == printed(theirs), (key, theirs, row["value"])
        if error == "N/A":
            assert row["stderr"] is None, key
        else:
            assert row["stderr"] == pytest.approx(error, rel=2e-5), key
            assert shown[key][1] == printed(error), (key, error)
    return rows


def test_every_figure_is_the_harnesss(judged, tmp_path, monkeypatch):
    folder, judge = judged
    rows = small_sets()
    for name, documents in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    wanted, samples = harness(judge, rows, None, monkeypatch)
    got = compare(folder, tmp_path, wanted, samples, TASKS, tmp_path)
    assert any(row["truncated"] > 0 for row in got), "the left cut is not tested"
    assert len({row["value"] for row in got}) > 8, "the figures do not differ"


@pytest.mark.skipif(not (shared_folder() / "eval").is_dir(), reason="no shared/eval; set CYFA_SHARED")
@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not installed")
def test_the_same_on_the_published_sets(judged, tmp_path, monkeypatch):
    folder, judge = judged
    rows = {name: documents[:16] for name, documents in shared_sets().items()}
    rows["wikitext"] = rows["wikitext"][:1]
    wanted, samples = harness(judge, rows, None, monkeypatch)
    for limit, tasks in ((16, [task for task in rows if task != "wikitext"]), (1, ["wikitext"])):
        part = {key: value for key, value in wanted.items() if key[0] in tasks}
        compare(folder, shared_folder() / "eval", part, samples, tasks, tmp_path, "--limit", limit)


def test_generated_texts_are_transformers(judged, tmp_path):
    """Greedy texts of a prompt without BOS, which the recall tasks score."""
    folder, judge = judged
    passage = "The trophy does not fit in the suitcase because it is too big. The city is"
    (tmp_path / "based_squad.jsonl").write_text(json.dumps({"text": passage, "value": "Rome"}) + "\n")
    out = tmp_path / "out"
    cyfa(folder, "based_squad", "--data", tmp_path, "--out", out)
    (sample,) = map(json.loads, (out / "samples_based_squad.jsonl").read_text().splitlines()[1:])
    ids = judge.tokenizer.encode(passage, add_special_tokens=False)[-(LENGTH - 48) :]
    made = judge.model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False, pad_token_id=0)[0, len(ids) :].tolist()
    text = judge.tokenizer.decode(made, skip_special_tokens=True).split("\n")[0]
    made_by_cyfa = sample.get("texts", [""])[0]
    assert [re.sub("\ufffd+", "\ufffd", t) for t in (made_by_cyfa, text)] == [re.sub("\ufffd+", "\ufffd", text)] * 2
