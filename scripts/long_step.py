#!/usr/bin/env python3
"""Trains on one sequence that is cut over many ranks, by Gloo on the CPU, and on the same sequence as a whole on one process, and compares
losses and gradient norms.

    scripts/long_step.py [TOKENS] [--ranks N] [--steps S]

One step on 1,048,576 tokens over 8 ranks by default, of a model with 2 layers of width 16. Exit status 0: the figures are those of one
process.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 1, "head_dim": 16, "num_slots": 8,
          "vocab_size": 258, "intermediate_size": 32, "bos_token_id": 256, "eos_token_id": 257}
ROUNDING = 1e-5  # relative: a stretch has other chunks, and the states between the ranks are in fp32


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", nargs="?", type=int, default=1 << 20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        line = " and ".join(f"{i * i % 97} sheep, {i % 13} wolves" for i in range(1000)) + "\n"
        (folder / "text.txt").write_text(line * (2 + options.steps * options.tokens // len(line)))
        (folder / "config.json").write_text(json.dumps(CONFIG))
        subprocess.run([sys.executable, "-m", "cyfa", "prepare", folder / "data", folder / "text.txt", "-q"], check=True, env=environment)
        keys = [f"model={folder / 'config.json'}", f"data={folder / 'data'}", f"steps={options.steps}", "batch=1",
                f"context={options.tokens}", "warmup=0", "log_every=1", "recompute=true", "threads=1"]
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), "-m", "cyfa", "train",
                 folder / "cut", *keys, f"context_ranks={options.ranks}"]
        rows = {}
        for run, words in (("cut", ranks), ("whole", ["-m", "cyfa", "train", folder / "whole", *keys])):
            began = time.monotonic()
            subprocess.run([sys.executable, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
            rows[run] = [json.loads(row) for row in (folder / run / "metrics.jsonl").read_text().splitlines()]
            on = f"{options.ranks} ranks" if run == "cut" else "one process"
            print(f"{options.tokens:,} tokens on {on}: {rows[run][-1]['seconds'] / options.steps:.1f} s a step, "
                  f"{time.monotonic() - began:.0f} s in all", flush=True)
    same = True
    for cut, whole in zip(rows["cut"], rows["whole"], strict=True):
        difference = max(abs(cut[figure] / whole[figure] - 1) for figure in ("loss", "grad_norm"))
        same = same and difference < ROUNDING
        print(f"step {cut['step']}: loss {cut['loss']:.6f} and {whole['loss']:.6f}, gradient norm {cut['grad_norm']:.6f} and "
              f"{whole['grad_norm']:.6f}; rank 0 sent {cut['ranks']['bytes_sent_per_step'] / 1024:.0f} KiB and waited "
              f"{cut['ranks']['seconds_waiting_per_step']:.1f} s")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
