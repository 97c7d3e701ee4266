#!/usr/bin/env python3
"""Writes the tables of docs/evidence.md from docs/evidence.toml. With --check it only compares them (exit status 1: out of date).

    scripts/evidence_doc.py [--check]

A table stands between the lines <!-- SECTION: scripts/evidence_doc.py --> and <!-- end of SECTION -->, and has the rows of that section of
the TOML file. Every key of a row is a cell.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT, ROWS = ROOT / "docs/evidence.md", ROOT / "docs/evidence.toml"
COLUMNS = {"claim": "claim", "command": "command", "seen": "seen here", "agrees": "agrees", "full": "at full scale"}


def table(rows):
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        if set(row) != set(COLUMNS):
            sys.exit(f"evidence_doc: a row has {sorted(row)}, wanted {sorted(COLUMNS)}: {row.get('claim')}")
        lines.append("| " + " | ".join(" ".join(row[key].split()).replace("|", "\\|") for key in COLUMNS) + " |")
    return "\n".join(lines)


def main():
    sections = tomllib.loads(ROWS.read_text())
    old = new = DOCUMENT.read_text()
    for name, rows in sections.items():
        begin, end = f"<!-- {name}: scripts/evidence_doc.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(new):
            sys.exit(f"evidence_doc: {DOCUMENT.name} has no place for the section {name}: wanted {begin}")
        new = pattern.sub(lambda _, rows=rows: f"{begin}\n{table(rows)}\n{end}", new)
    if "--check" in sys.argv[1:]:
        sys.exit(0 if new == old else f"{DOCUMENT} is out of date; run scripts/evidence_doc.py")
    DOCUMENT.write_text(new)


if __name__ == "__main__":
    main()
