#!/usr/bin/env python3
"""Writes the option tables of docs/cli.md from the program's --help. With --check it only compares them (exit status 1: out of date).

    scripts/cli_doc.py PROGRAM [--check]

A table stands between the lines <!-- options of COMMAND: scripts/cli_doc.py --> and <!-- end of options of COMMAND -->. Every command
without subcommands must have one.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "cli.md"


def sections(program, command):
    """The help's sections by their titles, each a list of (name, meaning). An entry begins after two spaces, further lines are indented."""
    environment = {**os.environ, "LC_ALL": "C"}
    text = subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True, env=environment).stdout
    found, entries = {}, None
    for line in text.splitlines():
        title = re.fullmatch(r"(Arguments|Options|Commands|Recipe keys)\b.*:", line)
        if title:
            entries = found.setdefault(title[1], [])
        elif not line.startswith("  "):
            entries = None
        elif entries is not None and line[2] != " ":
            name, _, meaning = line.strip().partition("  ")
            entries.append([name, meaning.strip()])
        elif entries is not None:
            entries[-1][1] = f"{entries[-1][1]} {line.strip()}".strip()
    return found


def commands(program, command=()):
    """Every command without subcommands, as a tuple of words."""
    children = sections(program, command).get("Commands", [])
    if not children:
        yield command
    for name, _ in children:
        yield from commands(program, (*command, name))


def table(parts, *kinds):
    lines = [f"| {'key' if 'Recipe keys' in kinds else 'option'} | meaning | default |", "|---|---|---|"]
    for kind in kinds:
        for name, meaning in parts.get(kind, []):
            if name == "-h, --help":
                continue
            meaning, required = re.subn(r" \[required\]$", "", meaning)
            meaning, _, default = meaning.partition(" [default: ")
            takes_value = kind != "Options" or " " in re.sub(r", (?=-)", ",", name)
            default = default.removesuffix("]") or ("required" if required else "none" if takes_value else "off")
            name, meaning, default = (cell.replace("|", "\\|") for cell in (name, meaning, default))
            lines.append(f"| `{name}` | {meaning} | {default} |")
    return "\n".join(lines)


def blocks(program):
    """Every table with the name that its comments have."""
    for command in commands(program):
        parts = sections(program, command)
        yield "options of " + " ".join(command), table(parts, "Arguments", "Options")
        if "Recipe keys" in parts:
            yield "recipe keys of " + " ".join(command), table(parts, "Recipe keys")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    text = fresh = DOCUMENT.read_text()
    missing = []
    for name, block in blocks(sys.argv[1]):
        begin, end = f"<!-- {name}: scripts/cli_doc.py -->\n", f"\n<!-- end of {name} -->"
        if begin not in fresh or end not in fresh:
            missing.append(name)
            continue
        start, stop = fresh.index(begin) + len(begin), fresh.index(end)
        fresh = fresh[:start] + block + fresh[stop:]
    for name in missing:
        print(f"docs/cli.md has no place for the {name}: it needs the two comments", file=sys.stderr)
    if "--check" in sys.argv:
        if fresh != text:
            print("docs/cli.md is out of date: run scripts/cli_doc.py build/cyfa", file=sys.stderr)
        return int(fresh != text or bool(missing))
    DOCUMENT.write_text(fresh)
    return int(bool(missing))


sys.exit(main())
