#!/usr/bin/env python3
"""Training speed from Python: steps of cyfa.train_engine with torch's fused AdamW, to compare with `cyfa bench train` in the same run.

Prints a JSON line: {"op": "train", "by": "python", "model", "B", "T", "engine", "loss", "ms", "tokens_per_s", "peak_gib"}.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch

import cyfa


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", nargs="?", default="cyfa-400m")
    parser.add_argument("--B", type=int, default=32, help="sequences of a step")
    parser.add_argument("--T", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of a step")
    parser.add_argument("--repeats", type=int, default=8, help="timed steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    on_gpu = options.device.startswith("cuda")
    model = cyfa.nn.CausalLM(options.config, seed=1, device=options.device)
    engine = cyfa.train_engine(model, compute=torch.bfloat16 if on_gpu else None)
    optimizer = torch.optim.AdamW(cyfa.nn.optimizer_groups(model, 0.1), lr=1e-4, betas=(0.9, 0.95), fused=True)
    vocabulary = cyfa.nn.describe(options.config)["config"]["vocab_size"]
    ids = torch.randint(vocabulary, (options.B // options.accumulate, options.T + 1), device=options.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step():
        engine.begin_step()
        total = torch.zeros((), device=options.device)
        for _ in range(options.accumulate):
            loss = engine.loss(inputs, targets) / options.accumulate
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total.item()

    times = []
    for _ in range(options.repeats + 2):
        optimizer.zero_grad()
        begin = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times[2:])
    row = {"op": "train", "by": "python", "model": pathlib.Path(options.config).stem, "B": options.B, "T": options.T, "engine": engine.name,
           "loss": round(loss, 4), "ms": round(1e3 * seconds, 2), "tokens_per_s": round(options.B * options.T / seconds),
           "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
