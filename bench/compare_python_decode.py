#!/usr/bin/env python3
"""Decoding speed from Python: transformers' generate() on a cyfa model, beside the step engine alone, in one run.

Prints a JSON line per batch size: {"op": "decode", "by": "python", "model", "B", "engine", "generate", "steps"}, both in tokens/s. The
parameters are random.
"""

import argparse
import json
import pathlib
import time

import torch

import cyfa
import cyfa.hf
from cyfa.engine import StepEngine


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", nargs="?", default="cyfa-400m")
    parser.add_argument("--B", type=int, nargs="+", default=[1, 64], help="batch sizes")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    on_gpu = options.device.startswith("cuda")
    config = cyfa.hf.CyfaConfig.from_dict(json.loads(cyfa.nn.config_text(options.config)))
    model = cyfa.hf.CyfaForCausalLM(config).to(device=options.device, dtype=torch.bfloat16 if on_gpu else torch.float32).eval()
    vocabulary = cyfa.nn.describe(options.config)["config"]["vocab_size"]
    for batch in options.B:
        prompts = torch.randint(3, vocabulary, (batch, options.prompt), device=options.device)

        def generate():
            model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=options.tokens, do_sample=False,
                           min_new_tokens=options.tokens, pad_token_id=0)

        engine = StepEngine(model)
        decoding = engine.begin(batch)

        def steps():
            ids = prompts[:, 0]
            for _ in range(options.tokens):
                ids = decoding.step(ids).argmax(-1)

        rates = []
        for work in (generate, steps):
            for _ in range(2):  # the first run warms up
                begin = time.perf_counter()
                work()
                if on_gpu:
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - begin
            rates.append(round(batch * options.tokens / seconds))
        print(json.dumps({"op": "decode", "by": "python", "model": pathlib.Path(options.config).stem, "B": batch, "engine": engine.name,
                          "generate": rates[0], "steps": rates[1]}), flush=True)


if __name__ == "__main__":
    main()
