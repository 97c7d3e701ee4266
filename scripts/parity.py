#!/usr/bin/env python3
"""Trains every mixer at a few million parameters on the same bytes; prints a table of parameters, state, final loss and tokens per second.

    scripts/parity.py [--text FILE] [--steps N] [--out DIR] [CONFIG ...]

The configs are those in configs/parity: the same width and depth and, except for the Transformer, the same state size. Every run uses
recipes/bytes.toml with a shorter context and the same seed, and thus sees the same batches in the same order. On a CPU a run can be
repeated bit for bit (--twice checks that). Exit status: 0 done, 1 a loss is not finite, does not fall or does not repeat.
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CYFA = ROOT / "build" / "cyfa"


def run(*command):
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def project_text(path):
    """Writes the project's own documents and sources to `path`."""
    files = [p for folder in ("docs", "cyfa", "apps") for kind in ("*.md", "*.h", "*.cc") for p in (ROOT / folder).rglob(kind)]
    path.write_bytes(b"".join(p.read_bytes() for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(files)]))
    return path


def train(config, data, folder, arguments):
    shutil.rmtree(folder, ignore_errors=True)
    settings = [f"model={config}", f"data={data}", f"steps={arguments.steps}", f"warmup={max(1, arguments.steps // 10)}", "context=128",
                "log_every=1"]
    run(CYFA, "train", folder, "-q", "-r", "recipes/bytes.toml", *settings, *arguments.set)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=pathlib.Path, help="config files (default: all in configs/parity)")
    parser.add_argument("--text", type=pathlib.Path, help="text to train on (default: the project's own documents and sources)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "parity",
                        help="folder for the runs and table.json (default: build/parity)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="recipe values to change")
    parser.add_argument("--twice", action="store_true", help="train everything twice and compare the losses bit for bit")
    arguments = parser.parse_args()
    configs = [c.resolve() for c in arguments.configs] or sorted((ROOT / "configs" / "parity").glob("*.json"))
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = arguments.text.resolve() if arguments.text else project_text(arguments.out / "text.txt")
    data = arguments.out / "data"
    shutil.rmtree(data, ignore_errors=True)
    run(CYFA, "prepare", data, text, "--tokenizer", "bytes", "-q")
    listed = subprocess.run([str(CYFA), "models", *map(str, configs), "--json"], check=True, capture_output=True).stdout
    facts = {row["config"]: row for row in json.loads(listed)}

    print(f"{'config':<14} {'parameters':>11} {'state/layer':>12} {'first loss':>11} {'final loss':>11} {'tokens/s':>9}")
    rows, failed = [], False
    for config in configs:
        name = config.stem
        curve = train(config, data, arguments.out / "runs" / name, arguments)
        losses = [row["loss"] for row in curve if "loss" in row]
        final = sum(losses[-20:]) / len(losses[-20:])  # the loss of a single batch is noisy
        verdict = "" if math.isfinite(final) and final < losses[0] else "  does not fall"
        if arguments.twice:
            again = train(config, data, arguments.out / "runs" / (name + "-again"), arguments)
            verdict += "" if [row.get("loss") for row in again] == [row.get("loss") for row in curve] else "  does not repeat"
        failed = failed or bool(verdict)
        speed = sorted(row["tokens_per_s"] for row in curve if "tokens_per_s" in row)
        row = {"config": name, "parameters": facts[name]["parameters"], "state": facts[name]["state_scalars_per_layer"],
               "first_loss": losses[0], "final_loss": final, "tokens_per_s": speed[len(speed) // 2]}
        rows.append(row)
        state = f"{row['state']:,}" if row["state"] else "grows"
        print(f"{name:<14} {row['parameters']:>11,} {state:>12} {losses[0]:>11.3f} {final:>11.3f} {row['tokens_per_s']:>9.0f}{verdict}",
              flush=True)
    (arguments.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
