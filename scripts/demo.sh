#!/bin/bash
# What the project does, in a minute: the machine, the checks, a picture, a short measurement.
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

step "build/cyfa bench op: one layer of a 400M model, 1,024 tokens"
build/cyfa bench op --T 1024 --repeats 5
step "build/cyfa bench op --op step: one decoding step for 64 sequences"
build/cyfa bench op --op step --repeats 5

cat << 'END'

== next
  open build/clock.png               the picture in full
  build/cyfa --help                  all commands; docs/cli.md explains them
  make test                          all tests
  make bench                         all measurements, against a plain PyTorch loop too
  docs/operator.md                   what the operator computes; docs/architecture.md how the code is laid out
END
