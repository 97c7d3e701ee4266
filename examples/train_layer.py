#!/usr/bin/env python3
"""Trains one CyFA layer in plain PyTorch: a module between an embedding and a linear layer, an optimizer and a loop.

The task needs a memory. Four letters come first, then noise, then four question marks, at which the network is to say the letters in their
order. Guessing is right once in eight times.

    python examples/train_layer.py
"""

import argparse

import torch
from torch import nn

import cyfa

LETTERS, NOISE, ASK = 8, 8, 16  # tokens 0 .. 7 are letters, 8 .. 15 noise, 16 is the question mark
LENGTH = 4  # letters to remember


class Network(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(ASK + 1, width)
        self.norm = nn.RMSNorm(width)
        self.layer = cyfa.nn.Mixer(
            {"model_type": "cyclic_flow_attention", "hidden_size": width, "num_heads": 2, "head_dim": 32, "num_slots": 16}
        )
        self.head = nn.Linear(width, LETTERS)

    def forward(self, ids):  # [B, T] to [B, T, LETTERS]
        x = self.embedding(ids)
        return self.head(x + self.layer(self.norm(x)))


def batch(size, gap):
    """ids [size, LENGTH + gap + LENGTH] and the letters [size, LENGTH] that they ask for."""
    letters = torch.randint(LETTERS, (size, LENGTH))
    noise = torch.randint(LETTERS, LETTERS + NOISE, (size, gap))
    return torch.cat([letters, noise, torch.full_like(letters, ASK)], dim=1), letters


@torch.no_grad()
def accuracy(network, gap):
    ids, letters = batch(256, gap)
    return (network(ids)[:, -LENGTH:].argmax(-1) == letters).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--gap", type=int, default=40, help="longest noise in training, in tokens")
    options = parser.parse_args()

    torch.manual_seed(0)
    network = Network()
    # Gates, norms and biases are not decayed; the layer says which of its parameters these are.
    optimizer = torch.optim.AdamW(cyfa.nn.optimizer_groups(network, weight_decay=0.01), lr=3e-3)
    for step in range(options.steps + 1):
        gap = int(torch.randint(options.gap // 2, options.gap + 1, ()))  # no fixed distance to rely on
        ids, letters = batch(32, gap)
        loss = nn.functional.cross_entropy(network(ids)[:, -LENGTH:].flatten(0, 1), letters.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}  right {accuracy(network, options.gap):.1%}", flush=True)

    for gap in (2 * options.gap, 10 * options.gap):
        print(f"with {gap} tokens of noise, more than in training: right {accuracy(network, gap):.1%}")


if __name__ == "__main__":
    main()
