#!/bin/bash
# Downloads the SentencePiece model of Mistral 7B (32,000 pieces; Apache 2.0), which the paper's models use, to build/tokenizer.model. It
# comes from the Python package mistral-common, whose code is not used. If the file exists, nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

target=build/tokenizer.model
member=mistral_common/data/tokenizer.model.v1
pieces_begin="3c756e6b3e"  # "<unk>", the first piece of the model

if [[ -s $target ]]; then
  echo "== $target exists"
  exit 0
fi
python=${PYTHON:-.venv/bin/python}
[[ -x $(command -v "$python") ]] || python=python3
mkdir -p build
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

echo "== downloading the package mistral-common"
# shellcheck disable=SC2086  # CYFA_PIP_ARGS is a list of words
"$python" -m pip download --quiet --disable-pip-version-check ${CYFA_PIP_ARGS:-} --no-deps --dest "$folder" mistral-common
"$python" - "$folder" "$member" "$target.part" "$pieces_begin" << 'END'
import glob, sys, zipfile

folder, member, target, begin = sys.argv[1:]
(wheel,) = glob.glob(folder + "/*.whl")
with zipfile.ZipFile(wheel) as package:
    if member not in package.namelist():
        sys.exit(f"tokenizer.sh: {wheel} has no {member}; try another version of mistral-common")
    model = package.read(member)
if bytes.fromhex(begin) not in model[:32]:
    sys.exit(f"tokenizer.sh: {member} is not a SentencePiece model")
open(target, "wb").write(model)
END
mv "$target.part" "$target"
echo "== $target: $(stat -c %s "$target") bytes"
