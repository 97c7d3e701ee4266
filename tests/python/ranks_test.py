"""`torchrun -m cyfa train` on several Gloo ranks: against one process, resumed, and with ranks that die, hang or disagree."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

PYTHON_FOLDER = str(pathlib.Path(__file__).resolve().parents[2] / "python")
ROUNDING = 1e-6  # relative L2 norm of a parameter's change: ranks add the gradients in another order
# A cut sequence has other chunks, and states in fp32 between the ranks. tests/train/ranks_test.cc holds it to 1e-9 in fp64.
ROUNDING_OF_CUTS = 1e-5
# Gradients are products in bf16, rounded on each rank; the small biases of gates, which begin at zero, are no more exact than that.
ROUNDING_OF_BF16 = 1 / 64
STEPS = 6


def launch(ranks: int, *words, restarts: int = 0) -> list:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts,
            "-m", "cyfa", "train", *words]


def environment(**more) -> dict:
    path = os.pathsep.join([PYTHON_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | more


def run(command, status=0) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, env=environment())
    assert (result.returncode == 0) == (status == 0), result.stdout + result.stderr
    return result.stdout + result.stderr


def alone(*words) -> str:
    return run([sys.executable, "-m", "cyfa", *words])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Recipe values of a small run, and the data it reads."""
    folder = tmp_path_factory.mktemp("text")
    text = folder / "text.txt"
    text.write_text(" ".join(f"{i * i % 97} sheep and {i % 13} wolves" for i in range(3000)))
    alone("prepare", folder / "data", text, "-q")
    config = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16,
              "num_slots": 8, "vocab_size": 258, "intermediate_size": 64, "bos_token_id": 256, "eos_token_id": 257}
    (folder / "config.json").write_text(json.dumps(config))
    return [f"model={folder / 'config.json'}", f"data={folder / 'data'}", f"validation={folder / 'data'}", f"steps={STEPS}", "batch=8",
            "context=24", "warmup=2", "rate=1e-3", "eps=1e-6", "log_every=1", "save_every=3", "eval_batches=2", "reset_documents=true",
            "bucket_mb=0.02"]


@pytest.fixture(scope="module")
def reference(keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    alone("train", folder, *keys, "accumulate=2")
    return folder


def weights(folder, step=STEPS) -> dict:
    return load_file(folder / f"checkpoints/step-{step:08}/model.safetensors")


def rows(folder) -> list:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def largest_difference(folder, other, step=STEPS) -> float:
    ours, theirs = weights(folder, step), weights(other, step)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-3)) for name in ours)


def equal(folder, other, step=STEPS) -> bool:
    ours, theirs = weights(folder, step), weights(other, step)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_ranks_train_as_one_process_and_resume_on_other_numbers(keys, reference, tmp_path):
    two, four = tmp_path / "two", tmp_path / "four"
    out = run(launch(2, two, *keys, "accumulate=2"))
    assert out.count("on 2 ranks") == 1 and out.count(f"saved step {STEPS}") == 1, out
    run(launch(4, four, *keys, "accumulate=2", "shard=optimizer"))
    for folder in (two, four):
        assert largest_difference(folder, reference) < ROUNDING
        for row, wanted in zip(rows(folder), rows(reference), strict=True):
            for figure in {"loss", "grad_norm", "eval_loss"} & wanted.keys():
                assert row[figure] == pytest.approx(wanted[figure], rel=1e-6), (row["step"], figure)
    ranks = rows(two)[-1]["ranks"]
    assert ranks["count"] == 2 and 0 <= ranks["slowest"] < 2
    parameters = sum(p.numel() for p in weights(two).values())
    assert 4 * parameters <= ranks["bytes_sent_per_step"] < 4 * parameters + 2000  # 2 (N - 1) / N of the gradients, and some numbers
    for folder, count in ((two, 2), (four, 4)):  # every rank writes its part, also if all of them have the whole
        parts = {path.name for path in (folder / f"checkpoints/step-{STEPS:08}").glob("optimizer*")}
        assert parts == {f"optimizer-{rank:05}-of-{count:05}.safetensors" for rank in range(1, count + 1)}
    assert 0 < rows(two)[-1]["mfu"] <= 1

    # From the middle: on as many ranks bit for bit; on others, and on one, within rounding.
    for folder, ranks in ((two, 2), (four, 2), (four, 1)):
        again = tmp_path / f"again-{folder.name}-{ranks}"
        subprocess.run(["cp", "-r", folder, again], check=True)
        words = [again, "--resume", "--from", "3"]
        out = run(launch(ranks, *words)) if ranks > 1 else alone("train", *words)
        same = folder == two
        assert not same or equal(again, folder)
        assert ("no longer bit for bit" in out) != same
        assert largest_difference(again, reference) < ROUNDING


def test_masters_in_fp32_are_divided_over_ranks_that_compute_in_bf16(keys, tmp_path):
    # An eps above most gradients: AdamW then enlarges no rounding.
    words = [*keys, "accumulate=2", "dtype=bf16", "eps=1e-2", "rate=1e-2", "clip=0"]
    one, whole, two, four = (tmp_path / name for name in ("one", "whole", "two", "four"))
    alone("train", one, *words)
    run(launch(2, whole, *words))
    run(launch(2, two, *words, "shard=optimizer"))
    run(launch(4, four, *words, "shard=optimizer"))
    for folder in (two, four):
        assert largest_difference(folder, one) < ROUNDING_OF_BF16
        for row, wanted in zip(rows(folder), rows(one), strict=True):
            for figure in {"loss", "grad_norm", "eval_loss"} & wanted.keys():
                assert row[figure] == pytest.approx(wanted[figure], rel=1e-2), (row["step"], figure)
        assert all(p.dtype == torch.float32 for p in weights(folder).values())  # a checkpoint is exact
        assert not all(torch.equal(p, p.bfloat16().float()) for p in weights(folder).values())
    assert equal(two, whole)  # two gradients have one sum, and the same update in whole or in parts
    parameters = sum(p.numel() for p in weights(two).values())
    sent = rows(two)[0]["ranks"]["bytes_sent_per_step"]  # (N - 1) / N of the gradients in fp32, and of parameters that are mostly bf16
    assert 3 * parameters <= sent < 3.3 * parameters + 2000
    assert "sheep" in alone("generate", two / f"checkpoints/step-{STEPS:08}", "--prompt", "12 sheep", "-n", 4)

    # From the middle: on as many ranks bit for bit; on others, on one, and from a checkpoint of one, within rounding.
    for folder, ranks in ((two, 2), (four, 2), (two, 1), (one, 2)):
        again = tmp_path / f"again-{folder.name}-{ranks}"
        subprocess.run(["cp", "-r", folder, again], check=True)
        resumed = [again, "--resume", "--from", "3", "shard=optimizer"]
        run(launch(ranks, *resumed)) if ranks > 1 else alone("train", *resumed)
        assert (folder, ranks) != (two, 2) or equal(again, folder)
        assert largest_difference(again, one) < ROUNDING_OF_BF16

    # A new run that continues from such a checkpoint has its exact values: without a rate nothing moves.
    run(launch(2, tmp_path / "new", *words, "shard=optimizer", f"model={two / f'checkpoints/step-{STEPS:08}'}", "rate=1e-30"))
    assert equal(tmp_path / "new", two)


def test_sequences_cut_over_ranks_train_as_whole_ones(keys, tmp_path):
    # An eps as above. Four ranks read two batches, each cut in two inside a row.
    words = [*keys, "steps=3", "batch=6", "context=101", "eps=1e-2", "rate=1e-2"]
    alone("train", tmp_path / "whole", *words)
    run(launch(4, tmp_path / "cut", *words, "context_ranks=2", "recompute=true"))
    assert largest_difference(tmp_path / "cut", tmp_path / "whole", 3) < ROUNDING_OF_CUTS
    assert rows(tmp_path / "cut")[-1]["eval_loss"] == pytest.approx(rows(tmp_path / "whole")[-1]["eval_loss"], rel=1e-6)


def test_bf16_sums_are_close(keys, reference, tmp_path):
    run(launch(2, tmp_path / "run", *keys, "accumulate=2", "reduce=bf16"))
    assert rows(tmp_path / "run")[-1]["loss"] == pytest.approx(rows(reference)[-1]["loss"], rel=1e-3)
    assert largest_difference(tmp_path / "run", reference) > ROUNDING


def test_bench_train_on_ranks(tmp_path):
    words = ["cyfa-bytes-2m", "--B", "4", "--T", "32", "--repeats", "2", "--shard", "optimizer", "--json", tmp_path / "rows.json"]
    command = launch(2, *words)
    command[command.index("cyfa") + 1 : command.index("cyfa") + 2] = ["bench", "train"]
    out = run(command)
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert out.count("tokens/s") == 1 and "ranks     2: each sends" in out, out
    # A reduce-scatter of the gradients and an all-gather of the parameters, each half of 4 bytes a parameter, and some numbers.
    assert row["ranks"]["count"] == 2 and row["ranks"]["bytes_sent_per_step"] == pytest.approx(4 * row["parameters"], rel=0.01)


def test_bad_starts_end_in_words(keys, tmp_path):
    assert "wanted a multiple of accumulate times ranks = 6" in run(launch(2, tmp_path / "run", *keys, "accumulate=3", "batch=9"), 1)
    program = [os.environ.get("CYFA_PROGRAM", "cyfa"), "train", tmp_path / "run", *keys]
    result = subprocess.run([str(word) for word in program], capture_output=True, text=True, env=environment(RANK="0", WORLD_SIZE="2"))
    assert result.returncode == 2 and "-m cyfa train" in result.stderr
    assert not (tmp_path / "run").exists()
