"""Writes tests/vectors/adamw/steps.safetensors: steps of torch.optim.AdamW with clipping, for tests/train/optimizer_test.cc.

    python tests/vectors/make_adamw.py build/cyfa

The parameters are those of the tiny model in adamw/model.json; the program is asked only for their names and shapes. Matrices,
convolutions and readouts have weight decay; norms, biases and A_log have none. The gradients are random, some beyond the clipping norm and
some below it; the rate changes from step to step. Run by hand; needs torch.
"""

import json
import pathlib
import struct
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).parent / "adamw"
RATES = [3e-3, 1e-2, 1e-2, 5e-3, 1e-3, 2e-3]
SCALES = [1.0, 0.01, 3.0, 0.002, 0.05, 20.0]  # of the gradients
SETTINGS = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
AFTER = [1, 3, 6]  # steps whose parameters are stored


def decays(name):
    return not any(part in name for part in ("norm", "bias", "A_log"))


def main():
    command = [sys.argv[1], "models", "--describe", HERE / "model.json"]
    described = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shapes = {p["name"]: p["shape"] for p in json.loads(described)[0]["parameters"]}
    torch.manual_seed(1)
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    groups = [{"params": [p for name, p in parameters.items() if decays(name) == wanted],
               "weight_decay": SETTINGS["weight_decay"] if wanted else 0.0} for wanted in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["eps"])
    stored = {f"0.{name}": p.detach().clone() for name, p in parameters.items()}
    norms = []
    for step, (rate, scale) in enumerate(zip(RATES, SCALES), 1):
        for name, p in parameters.items():
            p.grad = torch.randn(p.shape) * scale
            stored[f"grad.{step}.{name}"] = p.grad.clone()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), SETTINGS["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        if step in AFTER:
            stored |= {f"{step}.{name}": p.detach().clone() for name, p in parameters.items()}
    stored |= {"rates": torch.tensor(RATES, dtype=torch.float64), "norms": torch.tensor(norms, dtype=torch.float64)}
    header, body = {"__metadata__": {key: str(value) for key, value in SETTINGS.items()} | {"torch": torch.__version__}}, b""
    for name, tensor in sorted(stored.items(), key=lambda item: (item[1].dtype != torch.float64, item[0])):
        data = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F64" if tensor.dtype == torch.float64 else "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "steps.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    print("norms before clipping:", norms)


main()
