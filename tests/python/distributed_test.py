"""DDP and FSDP2 on two gloo ranks against one process: gradients and three steps of AdamW; and the example of docs/distributed.md."""

import os
import pathlib
import re
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cyfa import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "vectors/cyclic_flow"
IDS = torch.randint(0, 24, (4, 17), generator=torch.Generator().manual_seed(5))
ROUNDING = 1e-5  # relative L2 norm: ranks add the gradients in another order
STEPPED = 1e-4  # AdamW divides by a gradient's size, so that rounding of small ones grows


def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


def whole(x: torch.Tensor) -> torch.Tensor:
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach()


def train(model, ids) -> tuple[dict, dict]:
    """The gradients of the first step, and the parameters after three."""
    optimizer = torch.optim.AdamW(nn.optimizer_groups(model, 0.1), lr=1e-3, eps=1e-6)
    first = None
    for _ in range(3):
        optimizer.zero_grad()
        model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).loss.backward()
        named = {name.removeprefix("module."): p for name, p in model.named_parameters()}
        first = first or {name: whole(p.grad).clone() for name, p in named.items()}
        optimizer.step()
    return first, {name: whole(p).clone() for name, p in named.items()}


def work(rank: int, port: int, way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        reference = nn.CausalLM.from_checkpoint(CONFIG)
        model = nn.CausalLM.from_checkpoint(CONFIG)
        if way == "ddp":
            wrapped = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block)
            wrapped = fully_shard(model)
        grads, parameters = train(wrapped, IDS[2 * rank : 2 * rank + 2])
        wanted_grads, wanted = train(reference, IDS)
        assert grads.keys() == wanted_grads.keys()
        scale = max(float(g.norm()) for g in wanted_grads.values())
        for name, g in wanted_grads.items():
            assert float((grads[name] - g).norm()) < ROUNDING * max(float(g.norm()), 1e-3 * scale), name
            assert rel(parameters[name], wanted[name]) < STEPPED, name
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_two_ranks_train_as_one_process(way):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, way), nprocs=2)


def documented(rank: int, port: int, block: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    exec(compile(block, "docs/distributed.md", "exec"), {})


def test_the_sharding_of_the_document_runs():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/distributed.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    mp.spawn(documented, (port, block), nprocs=2)
