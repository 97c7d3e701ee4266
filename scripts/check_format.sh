#!/bin/bash
# Checks the format of the sources and prints file:line of what is wrong: clang-format over the C++ and CUDA sources, and no line over 140
# columns in text files. Rows of tables that a script writes into a Markdown file (between <!-- NAME: SCRIPT --> and <!-- end of NAME -->)
# may be longer, since Markdown cannot wrap them. Other versions of clang-format format differently, so only version 14 is used.
set -euo pipefail
cd "$(dirname "$0")/.."
columns=140
version=14
failed=0

program=$(command -v "clang-format-$version" || command -v clang-format || true)
found=$([[ -z $program ]] || "$program" --version | sed -nE 's/.*version ([0-9]+)\..*/\1/p')
if [[ $found == "$version" ]]; then
  find apps bench cyfa python tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort |
    xargs "$program" --dry-run -Werror || failed=1
elif [[ -n $found ]]; then
  echo "SKIPPED: clang-format (version $found is installed, the check needs $version)"
else
  echo "SKIPPED: clang-format (not installed, the check needs version $version)"
fi

python3 - "$columns" << 'PYTHON' || failed=1
import pathlib, re, subprocess, sys

columns = int(sys.argv[1])
names = re.compile(r"\.(md|h|cc|cu|cuh|py|sh)$|(^|/)(CMakeLists\.txt|Makefile)$")
skipped = re.compile(r"^(build[^/]*|\.venv|\.git)(/|$)")
try:  # tracked and new files
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
except (OSError, subprocess.CalledProcessError):  # not a git repository
    files = [str(path) for path in pathlib.Path(".").rglob("*") if not skipped.match(str(path))]
long = 0
for name in sorted(set(files)):
    if not names.search(name) or not pathlib.Path(name).is_file():
        continue
    generated = False
    for number, line in enumerate(pathlib.Path(name).read_text(encoding="utf-8").split("\n"), 1):
        if name.endswith(".md") and re.fullmatch(r"<!-- (end of )?[\w. -]+(: [\w./]+)? -->", line):
            generated = not line.startswith("<!-- end of ")
        elif len(line) > columns and not (generated and line.startswith("|")):
            print(f"{name}:{number}: {len(line)} columns, the limit is {columns}")
            long += 1
sys.exit(long > 0)
PYTHON

[[ $failed -eq 0 ]] && echo "format: ok"
exit $failed
