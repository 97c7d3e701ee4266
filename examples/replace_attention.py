#!/usr/bin/env python3
"""Puts CyFA into an existing model: a LLaMA of transformers, made anew, whose attention layers are replaced by cyfa.nn.Mixer.

What stays is transformers' own: embedding, norms, MLPs, head and loss. The hybrid keeps softmax attention in one of the two layers. Each
model trains on the same batches of bytes of Alice's Adventures in Wonderland; the figures of so short a run say that it works, not which is
best.

    python examples/replace_attention.py
"""

import argparse
import pathlib

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import cyfa

ROOT = pathlib.Path(__file__).resolve().parents[1]


class CyfaAttention(nn.Module):
    """Takes the place of LlamaAttention: hidden states [B, T, D] in and out, and no attention weights. Positions are not needed, for the
    clock orders the memory."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.mixer = cyfa.nn.Mixer(
            {
                "model_type": "cyclic_flow_attention",
                "hidden_size": config.hidden_size,
                "num_heads": config.num_attention_heads,
                "head_dim": config.hidden_size // config.num_attention_heads,
                "num_slots": 64,
            }
        )

    def forward(self, hidden_states, **kwargs):
        if kwargs.get("past_key_values") is not None:
            raise ValueError("this layer keeps no cache; call the model with use_cache=False")
        return self.mixer(hidden_states), None


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, use_cache=False)
    )


def replaced(model, layers):
    for i in layers:
        model.model.layers[i].self_attn = CyfaAttention(model.config)
    return model


def batches(text, steps, size=8, length=96):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(text) - length, (size,), generator=generator)
        yield torch.stack([text[start : start + length] for start in starts])


def train(model, text, steps):
    """The mean loss of the last tenth of the steps, in nats per byte."""
    optimizer = torch.optim.AdamW(cyfa.nn.optimizer_groups(model, weight_decay=0.1), lr=2e-3)
    losses = []
    for ids in batches(text, steps):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    text = torch.tensor(list((ROOT / "data/alice/alice.txt").read_bytes()))
    models = {"softmax attention": llama(), "CyFA": replaced(llama(), [0, 1]), "one layer of each": replaced(llama(), [0])}
    for name, model in models.items():
        loss = train(model, text, options.steps)
        size = sum(p.numel() for p in model.parameters())
        print(f"{name:20} {size:9,} parameters  loss {loss:.3f} after {options.steps} steps", flush=True)

    model = models["CyFA"].eval()
    prompt = torch.tensor([list(b"Alice was ")])
    written = model.generate(prompt, max_new_tokens=60, do_sample=False, use_cache=False)[0]
    print(bytes(written.tolist()).decode(errors="replace").replace("\n", " "))


if __name__ == "__main__":
    main()
