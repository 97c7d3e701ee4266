#!/usr/bin/env python3
"""Compares the decode speed of the 400M CyFA with a Hugging Face LLaMA of that size (transformers, SDPA): bf16, on the CPU, in alternating
rounds.

Both models have random parameters, since speed does not depend on them. LLaMA decodes after a short prompt, which is its best case; a
decode step of CyFA costs the same at any length.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent


def llama(config):
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("installing transformers", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "transformers"], check=True)
        from transformers import LlamaConfig, LlamaForCausalLM
    d = config["hidden_size"]
    model = LlamaForCausalLM(LlamaConfig(hidden_size=d, num_hidden_layers=config["num_hidden_layers"], num_attention_heads=d // 64,
                                         num_key_value_heads=d // 64, intermediate_size=2816 * d // 1024, vocab_size=config["vocab_size"],
                                         attn_implementation="sdpa")).to(torch.bfloat16).eval()
    return model


@torch.inference_mode()
def llama_seconds(model, batch, prompt, tokens):
    ids = torch.randint(3, 30000, (batch, prompt))
    out = model(ids, use_cache=True)
    past, times = out.past_key_values, []
    for _ in range(tokens):
        ids = out.logits[:, -1:].argmax(-1)
        start = time.perf_counter()
        out = model(ids, past_key_values=past, use_cache=True)
        times.append(time.perf_counter() - start)
    return times


def cyfa_row(config, batch, repeats, threads):
    command = [str(ROOT / "build/cyfa"), "bench", "decode", str(config), "--B", str(batch), "--repeats", str(repeats),
               "--threads", str(threads), "--json", "-"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs/cyfa-400m.json", help="CyFA config (default: the 400M one)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="batch sizes (default: 1 and 8)")
    parser.add_argument("--tokens", type=int, default=12, help="timed steps in each of three rounds (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=32, help="length of LLaMA's prompt in tokens (default: %(default)s)")
    parser.add_argument("--json", default="", help="write the rows to this file")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text())
    threads = torch.get_num_threads()
    rows = []
    for batch in arguments.batches:
        model = llama(config)
        llama_seconds(model, batch, arguments.prompt, 2)
        ours, theirs = [], []
        for _ in range(3):
            ours.append(cyfa_row(arguments.config, batch, arguments.tokens, threads))
            theirs += llama_seconds(model, batch, arguments.prompt, arguments.tokens)
        cyfa = statistics.median(row["ms"] for row in ours)
        peer = statistics.median(theirs) * 1e3
        size = sum(p.numel() for p in model.parameters())
        print(f"batch {batch}: cyfa {cyfa:.1f} ms per step, {batch / cyfa * 1e3:.1f} tokens/s; LLaMA ({size / 1e6:.0f}M) {peer:.1f} ms, "
              f"{batch / peer * 1e3:.1f} tokens/s; ratio {peer / cyfa:.2f}", flush=True)
        common = {"op": "decode", "dtype": "bf16", "B": batch, "threads": threads}
        rows.append({"impl": "cyfa", **common, "ms": cyfa, "ratio_to_llama": peer / cyfa})
        rows.append({"impl": "transformers LLaMA", **common, "ms": peer, "parameters": size})
        del model
    if arguments.json:
        pathlib.Path(arguments.json).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
