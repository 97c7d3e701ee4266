#!/usr/bin/env python3
"""Loads a checkpoint and continues texts with transformers' generate().

Any folder with config.json, model.safetensors and tokenizer.model works: one written by `cyfa train`, by save_pretrained(), or a published
one. By default it is the small model that comes with the project, which writes English without much sense.

    python examples/generate.py
    python examples/generate.py FOLDER --prompt "Once upon a time" --tokens 200 --device cuda
"""

import argparse
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cyfa.hf  # noqa: F401: makes the model types known to transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", default=ROOT / "models/cyfa-4m")
    parser.add_argument("--prompt", nargs="+", default=["The history of the city", "She opened the door and"])
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.folder).to(options.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.folder, padding_side="left")

    torch.manual_seed(1)
    # Prompts of different lengths are padded on the left; padding does not touch the model's memory.
    prompts = tokenizer(options.prompt, return_tensors="pt", padding=True).to(options.device)
    for name, how in (("most likely", {"do_sample": False}), ("sampled", {"do_sample": True, "temperature": 0.7, "top_p": 0.95})):
        texts = model.generate(**prompts, max_new_tokens=options.tokens, **how)
        print(f"{name}:")
        for text in tokenizer.batch_decode(texts, skip_special_tokens=True):
            print("  " + text.replace("\n", " "))

    # The memory has a fixed size. It is in the cache that a call returns, and a later call goes on from it without the text before.
    ids = prompts.input_ids[:1]
    first = model(ids, use_cache=True)
    sizes = sum(x.numel() * x.element_size() for layer in first.past_key_values.states for x in layer)
    print(f"{ids.shape[1]} tokens and 10,000 tokens alike are remembered in {sizes / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
