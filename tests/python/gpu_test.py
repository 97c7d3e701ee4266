"""The package on an NVIDIA GPU, judged by the CPU: the ops in bf16, every model type, the training engine, and decoding."""

import json
import pathlib
import subprocess
import sys

import cyfa
import pytest
import torch
from cyfa import nn, ops
from cyfa.engine import StepEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: make gpu-test")
hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="the fast kernels need a Hopper GPU"
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ROOT / "models/cyfa-4m"
VECTORS = ROOT / "tests/vectors"
STORED = sorted(p.parent.name for p in VECTORS.glob("*/expected.safetensors"))
LIMIT = 0.01  # relative L2 norm of ops on bf16 inputs (cyfa/ops/cases/accuracy.h)
LIMIT_CLOCK = 0.03  # the same of the clock's gradient
FP32 = 1e-4  # between two float32 computations of a model on different devices
RECURRENCES = json.loads(torch.ops.cyfa.recurrence_table())


@torch.no_grad()
def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.cpu().double(), b.cpu().double()
    assert a.isfinite().all()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def outputs_and_gradients(op, inputs, device, backend, weight):
    """o and the gradient of each input. The reference is handed the same rounded values, in float64."""
    exact = backend == "reference"
    placed = {name: (x.double() if exact else x).to(device, copy=True).requires_grad_() for name, x in inputs.items()}
    o, _ = op(**placed, backend=backend)
    (o.float() * weight.to(device)).sum().backward()
    return {"o": o.detach(), **{name: x.grad for name, x in placed.items()}}


def compare(op, inputs, backend):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(inputs["v"].shape, generator=generator).bfloat16().float()
    got = outputs_and_gradients(op, inputs, "cuda", backend, weight)
    want = outputs_and_gradients(op, inputs, "cpu", "reference", weight)
    for name, x in want.items():
        assert rel(got[name], x) < (LIMIT_CLOCK if name == "delta" else LIMIT), name


def heads(H, K, V, T=200):
    generator = torch.Generator().manual_seed(1)
    random = lambda *shape: torch.rand(shape, generator=generator)  # noqa: E731
    q, k = (torch.nn.functional.normalize(random(2, T, H, K) - 0.5, dim=-1) * K**0.5 for _ in range(2))
    return random, {"q": q.bfloat16(), "k": k.bfloat16(), "v": (random(2, T, H, V) - 0.5).bfloat16()}


@hopper
def test_cyclic_flow_in_bf16():
    H, m = 2, 127
    random, inputs = heads(H, 256, 256)
    gates = {name: random(2, 200, H) for name in ("log_alpha", "delta", "beta")}
    readout = torch.eye(m) + 0.1 * (random(H, m, m) - 0.5)
    inputs |= gates | {"log_alpha": -0.1 * gates["log_alpha"], "readout": readout}
    offers = ops.cyclic_flow_backends(**{name: x.cuda() for name, x in inputs.items()})
    assert next(offer.backend for offer in offers if not offer.refusal) == "sm90", offers
    compare(ops.cyclic_flow, inputs, "auto")


@pytest.mark.parametrize("entry", RECURRENCES, ids=lambda entry: entry["op"])
def test_recurrences_in_bf16(entry):
    H, K, V = 2, 64, 64
    random, inputs = heads(H, K, V)
    inputs["k"] = (inputs["k"].float() / K**0.5).bfloat16()  # the delta rules want keys of length 1
    sizes = {"H": (H,), "BTH": (2, 200, H), "BTHK": (2, 200, H, K), "BTHV": (2, 200, H, V)}
    for argument in entry["arguments"]:
        x = random(*sizes[argument["shape"]])
        inputs[argument["name"]] = x if argument["name"] == "beta" else -0.1 * x
    compare(getattr(ops, entry["op"]), inputs, "auto")


@pytest.mark.parametrize("name", STORED)
@torch.no_grad()
def test_every_model_type_forward_and_steps(name):
    ids = torch.randint(0, 24, (3, 12), generator=torch.Generator().manual_seed(5))
    want = nn.CausalLM.from_checkpoint(VECTORS / name).eval()(ids).logits
    model = nn.CausalLM.from_checkpoint(VECTORS / name, device="cuda").eval()
    assert rel(model(ids.cuda()).logits, want) < FP32
    decoding = StepEngine(model).begin(3)
    for t in range(ids.shape[1]):
        assert rel(decoding.step(ids[:, t].cuda()), want[:, t]) < FP32


def losses_and_gradients(model, loss_of):
    model.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.cpu().double().flatten() for p in model.parameters()])


@hopper
def test_the_training_engine_is_as_exact_as_autocast():
    """Loss and gradients in bf16 products, by the engine and by the plain modules, against the model in float32 on the CPU."""
    ids = torch.randint(0, 4096, (4, 257), generator=torch.Generator().manual_seed(3))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    exact_model = nn.CausalLM.from_checkpoint(SMALL, dtype=torch.float32)
    exact_loss, exact = losses_and_gradients(exact_model, lambda m: m(inputs, targets).loss)

    model = nn.CausalLM.from_checkpoint(SMALL, dtype=torch.float32, device="cuda")
    inputs, targets = inputs.cuda(), targets.cuda()

    def under_autocast(m):
        with torch.autocast("cuda", torch.bfloat16):
            return m(inputs, targets).loss

    plain_loss, plain = losses_and_gradients(model, under_autocast)
    engine = cyfa.train_engine(model, compute=torch.bfloat16)
    assert engine.name == "sm90"

    def by_the_engine(m):
        engine.begin_step()
        return engine.loss(inputs, targets)

    loss, fast = losses_and_gradients(model, by_the_engine)
    assert abs(loss - exact_loss) < 2e-3 * exact_loss and abs(plain_loss - exact_loss) < 2e-3 * exact_loss
    assert rel(fast, exact) < max(2 * rel(plain, exact), 0.02), (rel(fast, exact), rel(plain, exact))


@hopper
def test_gradients_that_were_taken_away_are_an_error():
    model = nn.CausalLM.from_checkpoint(SMALL, dtype=torch.float32, device="cuda")
    ids = torch.zeros(1, 8, dtype=torch.long, device="cuda")
    engine = cyfa.train_engine(model, compute=torch.bfloat16)
    engine.begin_step()
    model.zero_grad()
    with pytest.raises(ValueError, match="before it"):
        engine.loss(ids, ids)


@hopper
def test_training_steps_follow_the_weights():
    model = nn.CausalLM.from_checkpoint(SMALL, dtype=torch.float32, device="cuda")
    ids = torch.randint(0, 4096, (4, 129), generator=torch.Generator().manual_seed(4)).cuda()
    engine = cyfa.train_engine(model, compute=torch.bfloat16)
    optimizer = torch.optim.AdamW(nn.optimizer_groups(model, 0.1), lr=1e-3, fused=True)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        engine.begin_step()
        loss = engine.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.5, losses


@hopper
def test_generate_writes_what_the_program_writes():
    """Greedy text of the same weights in bf16, by transformers' generate() and by `cyfa generate`: both decode with the step engine."""
    pytest.importorskip("transformers")
    from cyfa.hf import CyfaForCausalLM, CyfaTokenizer

    prompt, tokens = "The history of the city", 64
    command = [sys.executable, "-m", "cyfa", "generate", SMALL, "-p", prompt, "-n", str(tokens), "--device", "cuda", "--dtype", "bf16"]
    result = subprocess.run([*command, "--json", "-q"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)

    model = CyfaForCausalLM.from_pretrained(SMALL, dtype=torch.bfloat16).cuda().eval()
    ids = CyfaTokenizer.from_pretrained(SMALL)(prompt, return_tensors="pt").input_ids.cuda()
    assert ids.shape[1] == row["prompt_tokens"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    assert model._kept_engine._engine.name == "sm90+graph"
    new = out[0, ids.shape[1] :].tolist()
    assert new == row["ids"]
