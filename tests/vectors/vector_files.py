"""Writes the files of a stored model: config.json, model.safetensors and expected.safetensors."""

import json
import struct

import torch


def write_safetensors(path, tensors):
    kinds = {torch.float32: "F32", torch.int64: "I64"}
    header, data = {}, b""
    for name, x in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        raw = x.contiguous().numpy().tobytes()
        header[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, config, parameters, expected):
    """`parameters` by name in fp32; `expected` has input_ids, logits, loss and grad.<parameter>."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", parameters)
    write_safetensors(folder / "expected.safetensors", expected)
