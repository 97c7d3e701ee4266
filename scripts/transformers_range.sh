#!/bin/bash
# Runs the tests of cyfa.hf and of the evaluation tasks with the lowest transformers that pyproject.toml allows and with the newest. Each
# version gets an environment build/transformers-<version>, which takes torch and the rest from .venv through a .pth file. Needs the
# network, a build and `scripts/setup.sh python-tests`. Arguments are versions in place of these two.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
python=${PYTHON:-.venv/bin/python}
range=$(sed -n 's/^hf = \["transformers\(>=[0-9.]*,<[0-9]*\)".*/\1/p' pyproject.toml)
[[ -n $range ]] || { echo "$0: pyproject.toml has no extra hf with a range of transformers" >&2; exit 1; }
lowest=${range#>=}
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

library=$PWD/build/libcyfa_python.so
[[ -e $library ]] || { echo "$0: $library is missing: make build" >&2; exit 1; }
if [[ $# -eq 0 ]]; then set -- "==${lowest%%,*}" "$range"; else set -- "${@/#/==}"; fi
for wanted in "$@"; do
  folder=build/transformers$(tr -c 'a-z0-9.\n' '-' <<< "$wanted")
  environment() {
    "$python" -m venv "$folder"
    echo "$packages" > "$(echo "$folder"/lib/python3*/site-packages)/zz_torch.pth"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "transformers$wanted"
    # Commands that look beside the interpreter.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --ignore-installed --no-deps pytest lm-eval
  }
  stage "installing transformers$wanted" build/transformers.log environment
  "$folder/bin/python" -c 'import transformers; print("== transformers", transformers.__version__)'
  PYTHONPATH=$PWD/python CYFA_LIBRARY=$library CYFA_PROGRAM=$PWD/build/cyfa \
    "$folder/bin/python" -m pytest -q -p no:cacheprovider tests/python/{hf,hf_generate,lm_eval}_test.py
done
