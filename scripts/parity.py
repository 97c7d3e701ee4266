#!/usr/bin/env python3
"""Trains every mixer at a few million parameters on the same bytes and compares their losses on text that none of them was trained on.

    scripts/parity.py [--text FILE] [--steps N] [--rates R ...] [--seeds S ...] [--out DIR] [CONFIG ...]

The configs are those in configs/parity: the same width and depth and, except for the Transformer, the same state size. The text is cut into
three parts: training, tuning and held-out. Every config is trained once with each learning rate of the same grid; the rate with the lowest
loss on the tuning text is its own. It is then trained with that rate from every seed, which decides initial parameters and the order of the
batches, and evaluated on the held-out text, which has decided nothing before.

DIR/parity.json has every run, DIR/parity.md the table of held-out losses, mean and standard deviation over the seeds. With fewer than three
seeds there is no table. A run that has finished is not repeated: the script can be interrupted and started again, or given more configs.
Exit status: 0 done, 1 a loss is not finite or does not fall.
"""

import argparse
import hashlib
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {"train": 8, "tune": 1, "held-out": 1}  # in tenths of the text
LEAST_SEEDS = 3  # for a table


def cut_text(text, folder):
    """Writes the three parts of `text`, or of the project's documents and sources, to `folder`. A file of the project is in one part."""
    texts = dict.fromkeys(PARTS, b"")
    if text:
        data = text.read_bytes()
        begin = tenths = 0
        for part, share in PARTS.items():
            tenths += share
            end = len(data) if tenths == 10 else data.find(b"\n", len(data) * tenths // 10) + 1
            texts[part] = data[begin:end]
            begin = end
    else:
        files = [p for place in ("docs", "cyfa", "apps") for kind in ("*.md", "*.h", "*.cc") for p in sorted((ROOT / place).rglob(kind))]
        for path in files:
            place = hashlib.sha256(str(path.relative_to(ROOT)).encode()).digest()[0] % 10
            texts["held-out" if place == 9 else "tune" if place == 8 else "train"] += path.read_bytes()
    for part, data in texts.items():
        if not data:
            sys.exit(f"parity: the text has no line for its part {part}; give a longer one")
        (folder / f"{part}.txt").write_bytes(data)
    return {part: len(data) for part, data in texts.items()}


class Runs:
    """Trains models, each in a folder of its own, and remembers what came out."""

    def __init__(self, arguments, texts):
        self.arguments, self.out = arguments, arguments.out
        self.started, self.trained, self.total, self.done = time.monotonic(), 0, 0, 0
        self.data = {part: hashlib.sha256((self.out / f"{part}.txt").read_bytes()).hexdigest() for part in texts}

    def cyfa(self, *command):
        subprocess.run([str(part) for part in (self.arguments.program, *command)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def folder_of(self, part):
        folder = self.out / "data" / f"{part}-{self.data[part][:12]}"
        if not folder.exists():
            self.cyfa("prepare", folder, self.out / f"{part}.txt", "--tokenizer", "bytes", "-q")
        return folder

    def run(self, config, rate, seed, part):
        """The losses of one run, evaluated on `part` after the last step."""
        steps = self.arguments.steps
        settings = [f"steps={steps}", f"warmup={max(1, steps // 10)}", "context=128", "log_every=1", f"rate={rate}", f"seed={seed}",
                    *self.arguments.set]
        key = {"config": json.loads(config.read_text()), "settings": settings, "train": self.data["train"], part: self.data[part]}
        folder = self.out / "runs" / f"{config.stem}-{rate:g}-{seed}-{part}"
        result = folder.with_suffix(folder.suffix + ".json")
        self.done += 1
        about = f"[{self.done}/{self.total}] {config.stem}, rate {rate:g}, seed {seed}: "
        if result.exists() and (stored := json.loads(result.read_text()))["key"] == key:
            print(f"{about}{part} loss {stored['loss']:.4f}, from an earlier run", flush=True)
            return stored
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        self.cyfa("train", folder, "-q", "-r", "recipes/bytes.toml", f"model={config}", f"data={self.folder_of('train')}",
                  f"validation={self.folder_of(part)}", *settings)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        speeds = [row["tokens_per_s"] for row in rows]
        stored = {"key": key, "rate": rate, "seed": seed, "first_loss": rows[0]["loss"], "loss": rows[-1]["eval_loss"],
                  "tokens_per_s": statistics.median(speeds)}
        result.write_text(json.dumps(stored) + "\n")
        self.trained += 1
        left = (time.monotonic() - self.started) / self.trained * (self.total - self.done) / 60
        print(f"{about}{part} loss {stored['loss']:.4f} in {time.monotonic() - begin:.0f} s, about {left:.0f} min left", flush=True)
        return stored


def compare(config, facts, runs):
    """The row of one config: the sweep over the rates, then the runs from every seed."""
    arguments = runs.arguments
    sweep = [runs.run(config, rate, arguments.seeds[0], "tune") for rate in arguments.rates]
    best = min((r for r in sweep if math.isfinite(r["loss"])), key=lambda r: r["loss"], default=sweep[0])["rate"]
    final = [runs.run(config, best, seed, "held-out") for seed in arguments.seeds]
    losses = [r["loss"] for r in final]
    good = all(math.isfinite(r["loss"]) and r["loss"] < r["first_loss"] for r in final)
    edge = len(arguments.rates) > 1 and best in (min(arguments.rates), max(arguments.rates))
    return {"config": config.stem, "parameters": facts["parameters"], "state": facts["state_scalars_per_layer"],
            "tuning_loss_by_rate": {f"{r['rate']:g}": r["loss"] for r in sweep}, "rate": best, "rate_at_edge": edge,
            "held_out_loss_by_seed": dict(zip(map(str, arguments.seeds), losses)), "held_out_loss": statistics.mean(losses),
            "spread": statistics.stdev(losses) if len(losses) > 1 else None,
            "tokens_per_s": statistics.median(r["tokens_per_s"] for r in final), "good": good}


def table(rows, arguments, texts):
    """The results in Markdown, the lowest loss first."""
    described = ", ".join(f"{size:,} bytes of {part} text" for part, size in texts.items())
    changed = "".join(", " + value for value in arguments.set)
    rates, seeds = ", ".join(f"{rate:g}" for rate in arguments.rates), ", ".join(map(str, arguments.seeds))
    lines = ["# Held-out loss of every mixer", "",
             f"{arguments.steps:,} steps of recipes/bytes.toml with a context of 128{changed}; {described}.", "",
             f"- held-out loss: mean cross-entropy on the held-out text in nats per byte, mean over the seeds {seeds}",
             "- std over seeds: standard deviation of these losses",
             f"- rate: the one of {rates} with the lowest loss on the tuning text; a star marks an end of this grid",
             "- tokens/s: median while training", "",
             "| config | parameters | state per layer | rate | held-out loss | std over seeds | tokens/s |",
             "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: r["held_out_loss"]):
        state = f"{row['state']:,}" if row["state"] else "grows"
        star = "*" if row["rate_at_edge"] else ""
        lines.append(f"| {row['config']} | {row['parameters']:,} | {state} | {row['rate']:g}{star} | {row['held_out_loss']:.4f} "
                     f"| {row['spread']:.4f} | {row['tokens_per_s']:,.0f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=pathlib.Path, help="config files (default: all in configs/parity)")
    parser.add_argument("--text", type=pathlib.Path,
                        help="text: eight tenths train, one tunes, one is held out (default: the project's own)")
    parser.add_argument("--steps", type=int, default=1000, help="training steps (default: %(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3], help="learning rates (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds; a table takes three (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "parity",
                        help="folder of runs and results (default: build/parity)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="recipe values to change")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "cyfa", help="the program cyfa (default: build/cyfa)")
    arguments = parser.parse_args()
    arguments.out, arguments.program = arguments.out.resolve(), arguments.program.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    configs = [c.resolve() for c in arguments.configs] or sorted((ROOT / "configs" / "parity").glob("*.json"))
    texts = cut_text(arguments.text, arguments.out)
    listed = subprocess.run([str(arguments.program), "models", *map(str, configs), "--json"], check=True, capture_output=True).stdout
    facts = {row["config"]: row for row in json.loads(listed)}
    runs = Runs(arguments, texts)
    runs.total = len(configs) * (len(arguments.rates) + len(arguments.seeds))
    rows = []
    for config in configs:
        rows.append(compare(config, facts[config.stem], runs))
        settings = {"steps": arguments.steps, "rates": arguments.rates, "seeds": arguments.seeds, "set": arguments.set, "text_bytes": texts}
        (arguments.out / "parity.json").write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
        if len(arguments.seeds) >= LEAST_SEEDS:
            (arguments.out / "parity.md").write_text(table(rows, arguments, texts))
    if len(arguments.seeds) >= LEAST_SEEDS:
        print("\n" + (arguments.out / "parity.md").read_text())
    else:
        print(f"no table: {len(arguments.seeds)} seeds, wanted at least {LEAST_SEEDS}")
    bad = [row["config"] for row in rows if not row["good"]]
    if bad:
        print("the loss is not finite or does not fall: " + ", ".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
