#!/usr/bin/env python3
"""Writes the tables of docs/baselines.md from the registry and the configs; --check only compares (exit status 1: they are stale).

    scripts/baselines_doc.py PROGRAM [--check]
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "baselines.md"


def rows(program, *arguments):
    return json.loads(subprocess.run([program, "models", *arguments, "--json"], check=True, capture_output=True, text=True).stdout)


def table(head, lines):
    cells = lambda line: "| " + " | ".join(str(cell) for cell in line) + " |"
    return "\n".join([cells(head), cells("---" for _ in head), *map(cells, lines)])


def blocks(program):
    kinds = rows(program, "--kinds")
    yield "kinds", table(["model_type", "what", "recurrence", "state a layer", "cost", "reference", "checkpoints of"],
                         [[f"`{k['model_type']}`", k["about"], f"`{k['recurrence']}`", k["state"], k["cost"], k["reference"], k["origin"]] for k in kinds])
    configs = rows(program, str(ROOT / "configs"))
    yield "configs", table(["config", "model_type", "parameters (M)", "state a layer"],
                           [[f"`{c['config']}`", f"`{c['model_type']}`", f"{c['parameters'] * 1e-6:,.1f}",
                             f"{c['state_scalars_per_layer']:,}" if c["state_scalars_per_layer"] else "grows"] for c in configs])


def main():
    text = DOCUMENT.read_text()
    fresh = text
    for name, block in blocks(sys.argv[1]):
        begin, end = f"<!-- {name}: scripts/baselines_doc.py -->\n", f"\n<!-- end of {name} -->"
        start, stop = fresh.index(begin) + len(begin), fresh.index(end)
        fresh = fresh[:start] + block + fresh[stop:]
    if "--check" in sys.argv:
        if fresh != text:
            print("docs/baselines.md is stale: run scripts/baselines_doc.py build/cyfa", file=sys.stderr)
        return int(fresh != text)
    DOCUMENT.write_text(fresh)
    return 0


sys.exit(main())
