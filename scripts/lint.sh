#!/bin/bash
# clang-tidy over the sources, from the release build's compile commands. scripts/lint.sh [folder ...] restricts it.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=("$@")
[[ $# -gt 0 ]] || folders=(apps bench cyfa)

# clang knows neither gcc's precompiled headers nor all of its warnings. It runs in a folder of its own: for a function called tokenizer its
# analyzer would read tokenizer.model from the current one as C++.
mkdir -p build/lint
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g; s/-fpch-preprocess//g; s#("directory": ".*/build)"#\1/lint"#' \
  build/compile_commands.json > build/lint/compile_commands.json
# Only what this build compiles: the others would have no flags.
sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/lint/compile_commands.json | sed "s#^$PWD/##" | sort -u > build/lint/compiled
find "${folders[@]}" -name '*.cc' | sort | comm -12 - build/lint/compiled > build/lint/files
echo "== clang-tidy over $(wc -l < build/lint/files) files in ${folders[*]} (about half a minute each where torch is included)"
# omp.h comes from gcc; nothing else of its folder should win over clang's own.
xargs -a build/lint/files -P "${JOBS:-2}" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg="-idirafter$(c++ -print-file-name=include)"
