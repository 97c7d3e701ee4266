#!/usr/bin/env python3
"""Writes the tables of predictions in docs/scaling.md from `cyfa plan`. With --check it only compares them (exit status 1: out of date).

    scripts/scaling_doc.py PROGRAM [--check]

A table stands between the lines <!-- NAME: scripts/scaling_doc.py --> and <!-- end of NAME -->.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "scaling.md"
MODELS = ("cyfa-400m", "cyfa-800m", "cyfa-1.4b")
RECIPES = {"cyfa-400m": "cyfa-400m", "cyfa-800m": "cyfa-800m", "cyfa-1.4b": "cyfa-1.4b", "continue-8k-400m": "cyfa-400m",
           "continue-8k": "cyfa-800m", "continue-8k-1.4b": "cyfa-1.4b"}
LONG = {"cyfa-400m": ((8, 1 << 17), (8, 1 << 20), (64, 1 << 20), (64, 1 << 22), (256, 1 << 24), (1024, 1 << 24)),
        "cyfa-1.4b": ((8, 1 << 17), (8, 1 << 20), (64, 1 << 20), (64, 1 << 22), (256, 1 << 24), (1024, 1 << 24))}


class Plans:
    def __init__(self, program):
        self.program = program

    def best(self, model, gpus, context=2048, step=524288, tokens=15_000_000_000):
        """The fastest layout that `cyfa train` runs."""
        words = [self.program, "plan", model, "--gpus", gpus, "--context", context, "--batch-tokens", step, "--tokens", tokens, "--json"]
        found = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout
        return next(row for row in json.loads(found) if row["cyfa_train"] and not row["refusal"])


def layout(row):
    cut = f", cut over {row['context_ranks']}" if row["context_ranks"] > 1 else ""
    return row["layout"] + cut + (", recompute" if row["recompute"] else "")


def steps(plans):
    lines = ["| model | GPUs | layout | GiB | ms per step | exposed, ms | tokens/s | share of N GPUs alone | GPU hours for 15B tokens |",
             "|---|---|---|---|---|---|---|---|---|"]
    for model in MODELS:
        alone = plans.best(model, 1)["tokens_per_s"]
        for gpus in (1, 8, 64, 256, 1024):
            row = plans.best(model, gpus)
            lines.append(f"| {model} | {gpus:,} | {layout(row)}, {row['parts']} x {row['sequences_per_part']} | {row['memory_gib']:.0f} | "
                         f"{row['step_ms']:.0f} | {row['exposed_ms']:.0f} | {row['tokens_per_s']:,.0f} | "
                         f"{row['tokens_per_s'] / alone / gpus:.2f} | {row['gpu_hours']:.0f} |")
    return lines


def runs(plans):
    lines = ["| run | command | predicted time, tokens/s |", "|---|---|---|"]
    for name, model in RECIPES.items():
        recipe = tomllib.loads((ROOT / "recipes" / f"{name}.toml").read_text())
        step = recipe["batch"] * recipe["context"]
        tokens = step * recipe["steps"]
        row = plans.best(model, 8, recipe["context"], step, tokens)
        assert row["context_ranks"] == 1 and not row["recompute"], row
        shard = " shard=optimizer" if row["layout"] == "ZeRO-1" else ""
        command = f"torchrun --nproc-per-node 8 -m cyfa train run -r {name} accumulate={row['parts']}{shard}"
        lines.append(f"| {tokens / 1e9:.1f}B tokens, context {recipe['context']:,} | `{command}` | "
                     f"{tokens / row['tokens_per_s'] / 3600:.1f} hours, {row['tokens_per_s']:,.0f} |")
    return lines


def contexts(plans):
    lines = ["| model | GPUs | context | tokens a step | layout | GiB | s per step | exposed, ms | tokens/s |",
             "|---|---|---|---|---|---|---|---|---|"]
    for model, requests in LONG.items():
        for gpus, context in requests:
            step = max(4 * context, 1 << 22)
            row = plans.best(model, gpus, context, step)
            lines.append(f"| {model} | {gpus:,} | {context:,} | {step:,} | {layout(row)} | {row['memory_gib']:.0f} | "
                         f"{row['step_ms'] / 1e3:.2f} | {row['exposed_ms']:.0f} | {row['tokens_per_s']:,.0f} |")
    return lines


def main():
    plans = Plans(sys.argv[1])
    before = text = DOCUMENT.read_text()
    for table in (steps, runs, contexts):
        name = table.__name__
        pattern = rf"(<!-- {name}: scripts/scaling_doc.py -->\n).*?(<!-- end of {name} -->)"
        written = "\n".join(table(plans)) + "\n"
        text, count = re.subn(pattern, lambda found, new=written: found[1] + new + found[2], text, flags=re.DOTALL)
        if count != 1:
            sys.exit(f"{DOCUMENT}: there is no table {name}, or more than one")
    if "--check" not in sys.argv:
        DOCUMENT.write_text(text)
    elif text != before:
        sys.exit(f"{DOCUMENT} is out of date; make scaling-doc writes it")


if __name__ == "__main__":
    main()
