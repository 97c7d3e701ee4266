#!/usr/bin/env python3
"""Compares the training speed of the 9M CyFA with a Hugging Face LLaMA of that size (transformers, SDPA, fused AdamW): fp32, on the CPU, in
alternating rounds."""

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
    return LlamaForCausalLM(LlamaConfig(hidden_size=d, num_hidden_layers=config["num_hidden_layers"], num_attention_heads=max(1, d // 64),
                                        num_key_value_heads=max(1, d // 64), intermediate_size=(int(d * 8 / 3) + 255) // 256 * 256,
                                        vocab_size=config["vocab_size"], attn_implementation="sdpa", use_cache=False)).train()


def llama_seconds(model, optimizer, ids):
    start = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def cyfa_ms(config, batch, context, threads):
    command = [str(ROOT / "build/cyfa"), "bench", "train", str(config), "--B", str(batch), "--T", str(context),
               "--threads", str(threads), "--repeats", "3", "--json", "-"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)[0]["ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs/cyfa-9m.json", help="CyFA config (default: the 9M one)")
    parser.add_argument("--batch", type=int, default=2, help="sequences per step (default: %(default)s)")
    parser.add_argument("--context", type=int, default=2048, help="tokens per sequence (default: %(default)s)")
    parser.add_argument("--json", default="", help="write the rows to this file")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text())
    threads = torch.get_num_threads()
    model = llama(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    ids = torch.randint(0, config["vocab_size"], (arguments.batch, arguments.context))
    llama_seconds(model, optimizer, ids)
    ours, theirs = [], []
    for _ in range(3):
        ours.append(cyfa_ms(arguments.config, arguments.batch, arguments.context, threads))
        theirs += [llama_seconds(model, optimizer, ids) * 1e3 for _ in range(3)]
    tokens = arguments.batch * arguments.context
    cyfa, peer = statistics.median(ours), statistics.median(theirs)
    size = sum(p.numel() for p in model.parameters())
    print(f"cyfa {cyfa:.0f} ms per step, {tokens / cyfa * 1e3:.0f} tokens/s; LLaMA ({size / 1e6:.1f}M) {peer:.0f} ms, "
          f"{tokens / peer * 1e3:.0f} tokens/s; ratio {peer / cyfa:.2f}")
    if arguments.json:
        common = {"op": "train", "dtype": "fp32", "B": arguments.batch, "T": arguments.context, "threads": threads}
        rows = [{"impl": "cyfa", **common, "ms": cyfa, "ratio_to_llama": peer / cyfa},
                {"impl": "transformers LLaMA", **common, "ms": peer, "parameters": size}]
        pathlib.Path(arguments.json).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
