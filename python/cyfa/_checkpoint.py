"""Reads the weights of a checkpoint's folder into a module on the meta device."""

import json
import pathlib

import torch
from torch import nn


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of weights: model.safetensors, or the shards that model.safetensors.index.json names."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise FileNotFoundError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def load(model: nn.Module, folder: pathlib.Path, device=None, dtype=None) -> None:
    """Replaces the parameters of `model` by the checkpoint's. Raises ValueError with the names that are missing or not expected."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError("cyfa: reading checkpoints in Python needs the package safetensors: pip install safetensors") from error
    tensors = {}
    for path in files_of(folder):
        tensors.update(load_file(str(path), device=str(device or "cpu")))
    if dtype is not None:
        tensors = {name: x.to(dtype) for name, x in tensors.items()}
    wanted = dict(model.named_parameters())
    missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unknown:
        raise ValueError(f"{folder}: missing tensors {sorted(missing)}, unexpected tensors {sorted(unknown)}")
    model.load_state_dict(tensors, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_()
