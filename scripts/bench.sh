#!/bin/bash
# Measures speed and memory of the operators and the models on this CPU. All rows go to build/bench.json.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=build/bench
rm -rf "$parts"
mkdir -p "$parts"

step() { printf '\n== %s\n' "$*"; }

step "cyclic_flow: forward and backward, one layer of the 400M model"
build/cyfa bench op --pass both --json "$parts/cyclic_flow.json"
step "scalar_gated_la: the recurrence that cyclic_flow runs twice"
build/cyfa bench op --op scalar_gated_la --pass both --json "$parts/scalar_gated_la.json"
step "decode step, 64 sequences"
build/cyfa bench op --op step --json "$parts/step.json"
step "scaling with the sequence length"
build/cyfa bench op --scaling --json "$parts/scaling.json"
step "cyclic_flow beside a token loop in plain PyTorch (flash-linear-attention's naive_recurrent_cyfa)"
"$PYTHON" bench/compare_naive.py --json "$parts/compare_naive.json"
step "decoding with the 400M model in bf16, beside a plain read of its weights"
build/cyfa bench decode configs/cyfa-400m.json --B 1 8 --json "$parts/decode.json"
step "the same beside a Hugging Face LLaMA of that size"
"$PYTHON" bench/compare_llama_decode.py --json "$parts/compare_llama_decode.json"
step "loading a 1.4B checkpoint"
build/cyfa init configs/cyfa-1.4b.json "$parts/1.4b" --dtype bf16
build/cyfa bench load "$parts/1.4b" --json "$parts/load.json"
rm -rf "$parts/1.4b"

"$PYTHON" - "$parts"/*.json << 'END' > build/bench.json.tmp
import json, sys
rows = [row for path in sys.argv[1:] for row in json.load(open(path))]
print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
END
mv build/bench.json.tmp build/bench.json
printf '\nall rows are in build/bench.json\n'
