#!/bin/bash
# Runs clang-tidy over the sources with the compile commands of the release build. scripts/lint.sh [FOLDER...] restricts it to folders.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=("$@")
[[ $# -gt 0 ]] || folders=(apps bench cyfa)

# clang supports neither gcc's precompiled headers nor all of its warnings. It runs in a folder of its own: for a function called tokenizer
# its analyzer would read tokenizer.model in the current folder as C++.
mkdir -p build/lint
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g; s/-fpch-preprocess//g; s#("directory": ".*/build)"#\1/lint"#' \
  build/compile_commands.json > build/lint/compile_commands.json
# Only files that this build compiles, since the others have no flags.
sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/lint/compile_commands.json | sed "s#^$PWD/##" | sort -u > build/lint/compiled
find "${folders[@]}" -name '*.cc' | sort | comm -12 - build/lint/compiled > build/lint/files
echo "== clang-tidy over $(wc -l < build/lint/files) files in ${folders[*]} (about half a minute each where torch is included)"
# omp.h comes from gcc; clang's own headers take precedence over the others in its folder.
xargs -a build/lint/files -P "${JOBS:-2}" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg="-idirafter$(c++ -print-file-name=include)"
