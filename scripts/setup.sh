#!/bin/bash
# Installs what the build needs and this machine lacks: system packages with apt, and the pinned torch into .venv. If nothing is missing, it
# does not use the network. Each stage is one line; what apt and pip print goes to build/setup.log, which is shown if a stage fails.
#   scripts/setup.sh               everything that building and running the tests needs
#   scripts/setup.sh python-tests  also the packages that the tests of the Python package import (`make test`)
#   scripts/setup.sh clang-format  another command, from the Debian package of the same name; so with clang-tidy and chromium
# CYFA_TORCH_DIR names the folder of a torch package to use in place of .venv. CYFA_PIP_ARGS is passed to pip, for example an index of
# CPU-only wheels, which are a tenth of the size.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
log=build/setup.log

stop() { echo "setup: $*" >&2; exit 1; }

has_header() { printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | c++ -fsyntax-only -x c++ -; }
has_venv() { python3 -c 'import venv, ensurepip' 2>/dev/null; }
has_font() { compgen -G '/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf' || { command -v fc-list && fc-list : family | grep -q .; }; }

missing=()
need() {  # need <package> <test...>
  local package=$1
  shift
  "$@" > /dev/null 2>&1 || missing+=("$package")
}

python_tests=
if [[ ${1:-} == python-tests ]]; then
  python_tests=1
  shift
fi

if [[ $# -gt 0 ]]; then
  for command in "$@"; do need "$command" command -v "$command"; done
else
  need g++ command -v c++
  need cmake command -v cmake
  need ninja-build command -v ninja
  need ccache command -v ccache
  need python3 command -v python3
  need python3-venv has_venv
  need libcairo2-dev has_header cairo/cairo-svg.h
  need fonts-dejavu-core has_font
  need libgtest-dev has_header gtest/gtest.h
  need libbenchmark-dev has_header benchmark/benchmark.h
  need libcli11-dev has_header CLI/CLI.hpp
  need nlohmann-json3-dev has_header nlohmann/json.hpp
  need libsentencepiece-dev has_header sentencepiece_processor.h
  need libzstd-dev has_header zstd.h
  need libtomlplusplus-dev has_header toml++/toml.h
fi

if [[ ${#missing[@]} -gt 0 ]]; then
  command -v apt-get > /dev/null || stop "this system has no apt-get; please install the equivalents of the Debian packages ${missing[*]}"
  sudo=()
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo > /dev/null || stop "not root, and sudo is missing; please run as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  packages() {
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  }
  stage "installing ${missing[*]}" "$log" packages
fi
[[ $# -eq 0 ]] || exit 0

header=include/torch/csrc/api/include/torch/torch.h
if [[ -n ${CYFA_TORCH_DIR:-} ]]; then
  [[ -e $CYFA_TORCH_DIR/$header ]] ||
    stop "CYFA_TORCH_DIR is $CYFA_TORCH_DIR, which has no $header; it must be the folder of the Python package torch"
  echo "== torch: $CYFA_TORCH_DIR (CYFA_TORCH_DIR)"
  exit 0
fi

# Reads the installed versions from files, since pip would use the network.
wanted=$(sed -n 's/^torch==//p' scripts/requirements.txt)
installed=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" .venv/lib/python3*/site-packages/torch/version.py 2>/dev/null || true)
if [[ $installed != "$wanted" ]] || ! compgen -G '.venv/lib/python3*/site-packages/numpy/version.py' > /dev/null; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    stop "$(python3 --version) is too old for torch $wanted, which needs Python 3.10 or later"
  torch() {
    [[ -x .venv/bin/python ]] || python3 -m venv .venv
    # shellcheck disable=SC2086  # CYFA_PIP_ARGS is a list of words
    .venv/bin/python -m pip install --quiet --disable-pip-version-check ${CYFA_PIP_ARGS:-} -r scripts/requirements.txt
  }
  stage "installing torch $wanted into .venv, a large download" "$log" torch
fi
.venv/bin/python -W ignore -c 'import torch' || stop "torch is installed in .venv but cannot be imported"

# The list that was installed last is kept beside the packages, so that nothing is asked of the network while it is the same.
list=scripts/requirements-test.txt
if [[ -n $python_tests ]] && ! cmp -s "$list" .venv/requirements-test.txt; then
  test_packages() {
    # shellcheck disable=SC2086  # CYFA_PIP_ARGS is a list of words
    .venv/bin/python -m pip install --quiet --disable-pip-version-check ${CYFA_PIP_ARGS:-} -r scripts/requirements.txt -r "$list"
    cp "$list" .venv/requirements-test.txt
  }
  stage "installing transformers, lm-eval and pytest into .venv" "$log" test_packages
fi
