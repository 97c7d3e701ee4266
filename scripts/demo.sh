#!/bin/bash
# Shows what the project does, in a few minutes: examines the machine, checks stored results, draws pictures, trains two small models.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "build/cyfa doctor: what this machine and this build can do"
build/cyfa doctor

step "build/cyfa verify op: every backend against stored results"
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

step "build/cyfa show clock --png build/clock.png: how writes move through the slots"
build/cyfa show clock --png build/clock.png

step "build/cyfa demo recall: a tiny model learns to recall, then its clock and slots are drawn"
build/cyfa demo recall --png build/recall.png

# The user's text, or the project's own documents and sources.
text=${DEMO_TEXT:-}
mkdir -p build/demo
if [[ -z $text ]]; then
  text=build/demo/project.txt
  find README.md CONTRIBUTING.md docs cyfa apps -name '*.md' -o -name '*.h' -o -name '*.cc' | sort | xargs cat > "$text"
fi
rm -rf build/demo/data build/demo/run
step "build/cyfa prepare: turns $text into tokens"
build/cyfa prepare build/demo/data "$text" --tokenizer bytes
step "build/cyfa train: trains a small byte-level model from scratch"
build/cyfa train build/demo/run -r recipes/bytes.toml data=build/demo/data
step "build/cyfa generate: what the model writes after a minute of training"
build/cyfa generate "$(ls -d build/demo/run/checkpoints/step-* | tail -1)" -p "The " -n 400 -t 0.7 --seed 1 --ignore-eos

cat << 'END'

== next
  open build/clock.png build/recall.png build/demo/run/loss.svg
  DEMO_TEXT=mybook.txt make demo     run it again on a text of your own
  build/cyfa train build/demo/run --resume steps=1000     continue the training to step 1000
  build/cyfa --help                  list all commands; docs/cli.md explains them
  make test                          run all tests
  make bench                         run all measurements, also of other implementations
  docs/operator.md                   what the operator computes; docs/architecture.md explains the code
END
