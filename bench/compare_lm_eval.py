#!/usr/bin/env python3
"""Times multiple-choice scoring: `cyfa eval` on a CyFA of 400M parameters beside lm-evaluation-harness on a LLaMA of 400M by transformers,
on the same documents, device and type, both with random weights. The harness runs at each batch size of --batches and counts with its best.
Neither the loading of models nor the reading of files is timed. The runs of both alternate. CPU seconds are those of all threads: on a
machine that does other work too, their ratio says more than that of the clock.

First, cyfa scores the harness's LLaMA: if a figure differs, no time is reported. Exit status: 0, or 1 if the ratio is below --wanted.
Needs torch, transformers, lm-eval, datasets and sentencepiece.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import datasets
import lm_eval
import sentencepiece
import torch
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Pieces:
    """A SentencePiece tokenizer as HFLM uses one, with BOS in front of every text."""

    def __init__(self, path):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.bos_token_id, self.eos_token_id = self.model.bos_id(), self.model.eos_id()
        self.pad_token_id, self.vocab_size, self.bos_token, self.name_or_path = 0, self.model.vocab_size(), "<s>", "pieces"

    def encode(self, text, add_special_tokens=True):
        return [self.bos_token_id] * add_special_tokens + self.model.encode(text)

    def decode(self, ids, **_):
        return self.model.id_to_piece(ids) if isinstance(ids, int) else self.model.decode(ids)


def documents(path):
    """Rows of ARC in the public format, from a file in that or the other format that `cyfa eval` reads."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
    for line in data.decode().split("\n"):
        row = json.loads(line) if line.strip() else {}
        if "query" in row:
            labels = "ABCDE"[: len(row["choices"])]
            question = row["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
            row = {"question": question, "choices": {"text": row["choices"], "label": list(labels)}, "answerKey": labels[row["gold"]]}
        if row:
            yield row


class Harness:
    """lm-evaluation-harness's own arc_easy; the time is that of its log-likelihoods."""

    def __init__(self, a, folder, rows):
        fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>", pad_token="</s>")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=TYPES[a.dtype]).to(a.device).eval()
        self.judge = HFLM(pretrained=model, tokenizer=fast, backend="causal", batch_size=1, max_length=2048)
        self.judge.tokenizer = Pieces(a.tokenizer)
        self.seconds, self.cpu, plain = 0.0, 0.0, self.judge.loglikelihood
        parts = datasets.Dataset.from_list(rows)
        datasets.load_dataset = lambda **_: datasets.DatasetDict({split: parts for split in ("train", "validation", "test")})

        def timed(requests, **options):
            begin, cpu = time.perf_counter(), time.process_time()
            found = plain(requests, **options)
            self.seconds, self.cpu = time.perf_counter() - begin, time.process_time() - cpu
            return found

        self.judge.loglikelihood = timed

    def run(self, batch):
        self.judge.batch_size_per_gpu = batch
        results = lm_eval.simple_evaluate(self.judge, tasks=["arc_easy"], bootstrap_iters=0)["results"]["arc_easy"]
        return self.seconds, self.cpu, {name: results[f"{name},none"] for name in ("acc", "acc_norm")}


def cyfa(a, folder, limit):
    with tempfile.TemporaryDirectory() as out:
        target = pathlib.Path(out) / "rows.json"
        command = [a.program, "eval", folder, "arc_easy", "--data", a.data, "--limit", limit, "--device", a.device, "--max-length", 2048]
        command += ["--threads", a.threads, "--dtype", a.dtype, "--batch-tokens", a.batch_tokens, "-q", "--json", target]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        rows = [row for row in json.loads(target.read_text()) if row["table"] == "results"]
    return rows[0]["seconds"], rows[0]["cpu_seconds"], {row["metric"]: row["value"] for row in rows}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/cyfa")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with arc_easy.jsonl or arc_easy.jsonl.zst")
    parser.add_argument("--limit", type=int, default=20, help="documents; 0 for all")
    parser.add_argument("--config", default=ROOT / "configs/cyfa-400m.json")
    parser.add_argument("--peer", default=ROOT / "configs/transformer-400m.json")
    parser.add_argument("--tokenizer", default=ROOT / "models/cyfa-4m/tokenizer.model", help="a SentencePiece model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32", choices=TYPES)
    parser.add_argument("--threads", type=int, default=0, help="of both; 0: one per core")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wanted", type=float, default=3.0)
    return parser.parse_args()


def main():
    a = parsed()
    if a.threads > 0:
        torch.set_num_threads(a.threads)
    (path,) = [p for p in (a.data / "arc_easy.jsonl", a.data / "arc_easy.jsonl.zst") if p.exists()][:1]
    rows = list(documents(path))[: a.limit or None]
    with tempfile.TemporaryDirectory() as name:
        ours, peer = pathlib.Path(name) / "cyfa", pathlib.Path(name) / "llama"
        subprocess.run([a.program, "init", a.config, ours, "--dtype", a.dtype], check=True, stdout=subprocess.DEVNULL)
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(a.peer)).to(TYPES[a.dtype]).save_pretrained(peer)
        for folder in (ours, peer):
            shutil.copy(a.tokenizer, folder / "tokenizer.model")
        harness = Harness(a, peer, rows)
        times = {batch: harness.run(batch) for batch in a.batches}
        best = min(times, key=lambda batch: times[batch][0])
        for batch, (seconds, cpu, _) in times.items():
            print(f"harness, batch {batch}: {seconds:.2f} s, {cpu:.2f} CPU s", flush=True)
        same, wanted = cyfa(a, peer, len(rows)), times[best][-1]
        if a.dtype == "fp32" and any(abs(same[-1][key] - wanted[key]) > 1e-9 for key in wanted):
            print(f"the same LLaMA scores {same[-1]} by cyfa and {wanted} by the harness", file=sys.stderr)
            return 1
        print(f"cyfa, the harness's LLaMA: {same[0]:.2f} s, {same[1]:.2f} CPU s, equal figures", flush=True)
        ratios, cpu_ratios = [], []
        for _ in range(a.repeats):
            mine, theirs = cyfa(a, ours, len(rows)), harness.run(best)
            ratios.append(theirs[0] / mine[0])
            cpu_ratios.append(theirs[1] / mine[1])
            print(f"cyfa {mine[0]:.2f} s, {mine[1]:.2f} CPU s; harness at batch {best} {theirs[0]:.2f} s, {theirs[1]:.2f} CPU s: "
                  f"{ratios[-1]:.2f} times, {cpu_ratios[-1]:.2f} by CPU time", flush=True)
    ratio = statistics.median(ratios)
    kind = f"{len(rows)} documents, {a.device}, {a.dtype}, {torch.get_num_threads()} threads"
    print(f"{kind}: median {ratio:.2f} times, {min(ratios):.2f} to "
          f"{max(ratios):.2f}; by CPU time {statistics.median(cpu_ratios):.2f}, {min(cpu_ratios):.2f} to {max(cpu_ratios):.2f}")
    return int(ratio < a.wanted)


if __name__ == "__main__":
    sys.exit(main())
