#!/bin/bash
# What the project does, in a few minutes: the machine, the checks, a picture, two small trainings.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "build/cyfa doctor: what this machine and this build can do"
build/cyfa doctor

step "build/cyfa verify op: stored results through every backend"
shopt -s nullglob
vectors=(tests/vectors/*.safetensors)
if [[ ${#vectors[@]} -gt 0 ]]; then
  build/cyfa verify op "${vectors[@]}" --json | "$PYTHON" -c '
import json, sys
rows = json.load(sys.stdin)
for r in rows:
    worst = max(r["tensors"], key=lambda t: t["rel_l2"] / t["limit"])
    verdict = "ok" if r["pass"] else "FAILED"
    print("  %-44s %-10s worst %s %.1e of %.0e: %s" % (r["file"], r["backend"], worst["name"], worst["rel_l2"], worst["limit"], verdict))
sys.exit(not all(r["pass"] for r in rows))'
else
  echo "  no vectors in tests/vectors"
fi

step "build/cyfa show clock --png build/clock.png: writes moving through the slots"
build/cyfa show clock --png build/clock.png

step "build/cyfa demo recall: a tiny model learns to answer, and shows its clock and its slots"
build/cyfa demo recall --png build/recall.png

# A text that is always there, or the user's own.
text=${DEMO_TEXT:-}
mkdir -p build/demo
if [[ -z $text ]]; then
  text=build/demo/project.txt
  find README.md CONTRIBUTING.md docs cyfa apps -name '*.md' -o -name '*.h' -o -name '*.cc' | sort | xargs cat > "$text"
fi
rm -rf build/demo/data build/demo/run
step "build/cyfa prepare: $text to tokens"
build/cyfa prepare build/demo/data "$text" --tokenizer bytes
step "build/cyfa train: a small model of bytes, from nothing"
build/cyfa train build/demo/run -r recipes/bytes.toml data=build/demo/data
step "build/cyfa generate: what it writes after a minute of reading"
build/cyfa generate "$(ls -d build/demo/run/checkpoints/step-* | tail -1)" -p "The " -n 400 -t 0.7 --seed 1 --ignore-eos

cat << 'END'

== next
  open build/clock.png build/recall.png build/demo/run/loss.svg
  DEMO_TEXT=mybook.txt make demo     the same with a text of your own
  build/cyfa train build/demo/run --resume steps=1000     train on: it goes on where it stopped
  build/cyfa --help                  all commands; docs/cli.md explains them
  make test                          all tests
  make bench                         all measurements, against PyTorch's peers too
  docs/operator.md                   what the operator computes; docs/architecture.md how the code is laid out
END
