#!/usr/bin/env python3
"""Writes the generated parts of docs/baselines.md from the mixer registry and the configs.

    scripts/baselines_doc.py PROGRAM [--check]

PROGRAM is build/cyfa. With --check nothing is written; exit status 1 means that the page is stale.
"""

import json
import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "baselines.md"
COLUMNS = 140  # the widest line of the page


def rows(program, *arguments):
    return json.loads(subprocess.run([program, "models", *arguments, "--json"], check=True, capture_output=True, text=True).stdout)


def table(head, lines):
    cells = lambda line: "| " + " | ".join(str(cell) for cell in line) + " |"  # noqa: E731
    return "\n".join([cells(head), cells("---" for _ in head), *map(cells, lines)])


def code(name):
    return f"`{name}`"


def recurrences(kinds):
    """A code block: model_type, then its recurrence, the readout on a line of its own."""
    indent = " " * (2 + max(len(kind["model_type"]) for kind in kinds))
    lines = []
    for kind in kinds:
        parts = [line for part in kind["recurrence"].split("; ") for line in textwrap.wrap(part, COLUMNS - len(indent))]
        lines += [kind["model_type"].ljust(len(indent)) + parts[0], *(indent + part for part in parts[1:])]
    return "\n".join(["```", *lines, "```"])


def blocks(program):
    kinds = rows(program, "--kinds")
    yield "kinds", table(["model_type", "method", "state per layer", "training cost"],
                         [[code(k["model_type"]), k["about"], k["state"], k["cost"]] for k in kinds])
    yield "recurrences", recurrences(kinds)
    yield "sources", table(["model_type", "published by", "reads and writes checkpoints of"],
                           [[code(k["model_type"]), k["reference"], k["origin"]] for k in kinds])
    configs = rows(program, str(ROOT / "configs"))
    state = lambda config: f"{config['state_scalars_per_layer']:,}" if config["state_scalars_per_layer"] else "grows"  # noqa: E731
    yield "configs", table(["config", "model_type", "parameters (M)", "state per layer"],
                           [[code(c["config"]), code(c["model_type"]), f"{c['parameters'] * 1e-6:,.1f}", state(c)] for c in configs])


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
