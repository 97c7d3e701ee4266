#!/bin/bash
# Shows in a few minutes what the project is about: recall that a window cannot do, how the memory works, a model that learns to write.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/demo
rm -rf "$out"
mkdir -p "$out"

step() { printf '\n== %s\n' "$*"; }

step "1. A memory of fixed size that keeps what matters: build/cyfa demo recall"
build/cyfa demo recall -o "$out/recall.png"

step "2. How it works: writes move through the slots as the clock runs: build/cyfa show clock"
build/cyfa show clock -o "$out/clock.png" | tail -n 1

step "3. A trained model's clock on a text it has never seen: build/cyfa probe models/cyfa-4m data/alice/alice.txt"
build/cyfa probe models/cyfa-4m data/alice/alice.txt --tokens 512 --sequences 4 --held-out 2 -q -o "$out/probe" > "$out/probe.txt"
sed -n '/^L3H2, /,/^$/p' "$out/probe.txt" | head -n 3
sed -n '/^3\. /,/^$/p' "$out/probe.txt"

text=${DEMO_TEXT:-data/alice/alice.txt}
step "4. A small language model learns to write like $text: build/cyfa prepare, train, generate"
# The last twentieth of the lines is kept for validation.
lines=$(wc -l < "$text")
head -n $((lines - lines / 20)) "$text" > "$out/train.txt"
tail -n $((lines / 20)) "$text" > "$out/valid.txt"
build/cyfa prepare "$out/data" "$out/train.txt" --tokenizer bytes -q | sed -n 1p
build/cyfa prepare "$out/valid" "$out/valid.txt" --tokenizer bytes -q > /dev/null
build/cyfa train "$out/run" -r recipes/alice.toml data="$out/data" validation="$out/valid" |
  awk -v live="$([[ -t 1 ]] && echo 1 || echo 0)" '
  /^step/ && !/validation/ { if (live) printf "\r\033[K%s", $0; fflush(); next }
  { printf "%s%s\n", live ? "\r\033[K" : "", $0; fflush() }'
checkpoint=$(ls -d "$out"/run/checkpoints/step-* | tail -n 1)
step "what it writes after these few minutes: build/cyfa generate $checkpoint -p 'Alice '"
build/cyfa generate "$checkpoint" -p 'Alice ' -n 500 -t 0.6 --seed 1 --ignore-eos

cat << END

== pictures to open
  $out/recall.png      why the CyFA finds the answers: pairs in their slots, the clock, and what each question reads
  $out/clock.png       one head's memory while its clock runs
  $out/probe/page.html the text coloured by clock increments, with the slots and what each read finds (a browser opens it)
  $out/run/loss.png    the loss of the training run (also loss.svg)

== next
  DEMO_TEXT=mybook.txt make demo                         the same with a text of your own
  build/cyfa train $out/run --resume steps=2000    train further, then generate again
  build/cyfa demo recall --gap 0 --pairs 3               without the gap the window learns it too
  build/cyfa doctor                                      what this machine can run, with a self-check
  build/cyfa --help                                      all commands; docs/cli.md explains them
  make test                                              run all tests
  docs/operator.md                                       what the operator computes; docs/README.md lists all documents
END
