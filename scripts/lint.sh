#!/bin/bash
# clang-tidy over the sources, from the release build's compile commands. scripts/lint.sh [folder ...] restricts it.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=("${@:-apps}")
[[ $# -gt 0 ]] || folders=(apps bench cyfa)

# clang knows neither gcc's precompiled headers nor all of its warnings.
mkdir -p build/lint
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g; s/-fpch-preprocess//g' build/compile_commands.json \
  > build/lint/compile_commands.json
find "${folders[@]}" -name '*.cc' | sort > build/lint/files
echo "== clang-tidy over $(wc -l < build/lint/files) files in ${folders[*]} (about half a minute each where torch is included)"
xargs -a build/lint/files -P "${JOBS:-2}" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option
