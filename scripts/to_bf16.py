#!/usr/bin/env python3
"""Copies a checkpoint with its parameters rounded to bf16, for a smaller file: scripts/to_bf16.py CHECKPOINT OUT

Takes the config, the parameters in one model.safetensors, the tokenizer and the model card; not the optimizer's state. Needs torch.
"""

import json
import pathlib
import shutil
import struct
import sys

import torch

KEPT = ("config.json", "tokenizer.model", "README.md")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    source, out = map(pathlib.Path, sys.argv[1:])
    data = (source / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {"format": "pt"})
    entries, body = {"__metadata__": metadata}, bytearray()
    for name, entry in header.items():
        kind = {"F32": torch.float32, "BF16": torch.bfloat16}[entry["dtype"]]
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        rounded = torch.frombuffer(bytearray(data[begin:end]), dtype=kind).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
        entries[name] = {"dtype": "BF16", "shape": entry["shape"], "data_offsets": [len(body), len(body) + len(rounded)]}
        body += rounded
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.mkdir(parents=True)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    for name in KEPT:
        if (source / name).exists():
            shutil.copy(source / name, out / name)


if __name__ == "__main__":
    main()
