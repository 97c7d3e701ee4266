"""cyfa.engine: decode steps and training passes against the model's own forward."""

import pathlib

import cyfa
import pytest
import torch
from cyfa import nn
from cyfa.engine import StepEngine

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "vectors"
STORED = sorted(p.parent.name for p in VECTORS.glob("*/expected.safetensors"))
LIMIT = 2e-5  # relative L2 norm between two float32 computations of the same thing
every_type = pytest.mark.parametrize("name", STORED)


def make(name: str) -> nn.CausalLM:
    return nn.CausalLM.from_checkpoint(VECTORS / name).eval()


@torch.no_grad()
def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


def ids_of(batch=3, length=12) -> torch.Tensor:
    return torch.randint(0, 24, (batch, length), generator=torch.Generator().manual_seed(5))


def flat(states) -> list[torch.Tensor]:
    return [x for layer in states for x in layer]


@every_type
@torch.no_grad()
def test_steps_equal_the_forward(name):
    model, ids = make(name), ids_of()
    whole = model(ids, return_state=True)
    decoding = StepEngine(model).begin(3)
    for t in range(ids.shape[1]):
        assert rel(decoding.step(ids[:, t]), whole.logits[:, t]) < LIMIT
    assert len(decoding) == 3
    for a, b in zip(decoding.states(), flat(whole.state), strict=True):
        assert rel(a, b) < LIMIT


@every_type
@torch.no_grad()
def test_steps_continue_a_prompt_and_select_sequences(name):
    model, ids = make(name), ids_of()
    whole = model(ids).logits
    state = flat(model(ids[:, :7], return_state=True).state)
    kept = [x.clone() for x in state]
    decoding = StepEngine(model).begin(3, state)
    decoding.step(ids[:, 7])
    decoding.select([2, 0])
    assert len(decoding) == 2
    assert rel(decoding.step(ids[[2, 0], 8]), whole[[2, 0], 8]) < LIMIT
    assert all(torch.equal(a, b) for a, b in zip(state, kept)), "a step changed the states it was given"


def test_an_engine_names_itself():
    engine = StepEngine(make("cyclic_flow"))
    assert engine.name == "portable" and engine.path(1) and engine.notes() == []
    training = cyfa.train_engine(make("cyclic_flow"))
    assert training.name == "portable" and isinstance(training.notes(), list)


def test_training_with_the_engine_equals_training_without():
    ids = torch.arange(40).remainder(7)[None]
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    plain, prepared = (nn.CausalLM(VECTORS / "cyclic_flow", seed=1) for _ in range(2))
    engine = cyfa.train_engine(prepared)
    optimizers = [torch.optim.AdamW(nn.optimizer_groups(m, 0.01), lr=1e-3) for m in (plain, prepared)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        engine.begin_step()
        losses = plain(inputs, targets).loss, engine.loss(inputs, targets)
        assert abs(float(losses[0].detach()) - float(losses[1].detach())) < 1e-5
        for loss, optimizer in zip(losses, optimizers):
            loss.backward()
            optimizer.step()
    for a, b in zip(prepared.parameters(), plain.parameters()):
        assert rel(a, b) < 1e-4


def test_losses_of_a_step_add_up_and_packed_rows_are_one_sequence_each():
    model, ids = make("cyclic_flow"), ids_of(2, 10)
    targets = ids.roll(-1, 1)
    engine = cyfa.train_engine(model)
    engine.begin_step()
    engine.loss(ids, targets).backward()
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    engine.begin_step()
    for row in range(2):
        (engine.loss(ids[row : row + 1], targets[row : row + 1]) / 2).backward()
    assert all(rel(p.grad, g) < 1e-4 for p, g in zip(model.parameters(), once))
    packed = engine.loss(ids, targets, torch.tensor([0, 10, 20]))
    assert abs(float(packed.detach()) - float(engine.loss(ids, targets).detach())) < 1e-5


IDS = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: cyfa.train_engine(m, engine="fast"), "no engine is called fast; wanted one of auto"),
        (lambda m: cyfa.train_engine(m, compute=torch.float16), "compute is torch.float16, wanted"),
        (lambda m: cyfa.train_engine(m).loss(IDS[None], IDS[None]), "begin_step"),
        (lambda m: StepEngine(m).begin(2).step(torch.zeros(3, dtype=torch.long)), r"ids has shape \[3\], wanted \[B\] = \[2\]"),
        (lambda m: StepEngine(m).begin(2).step(IDS + 99), "ids hold 99"),
        (lambda m: StepEngine(m).begin(2).select([2]), r"sequence is 2, wanted 0 \.\. 1"),
        (lambda m: StepEngine(m).begin(2, [torch.zeros(1)]), "got 1 state tensors"),
        (lambda m: StepEngine(nn.CausalLM(m.config, device="meta")), "meta device and has no values"),
    ],
)
def test_errors_are_value_errors_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call(make("cyclic_flow"))
