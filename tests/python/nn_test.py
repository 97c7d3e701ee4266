"""cyfa.nn for every model type: names, values, gradients, states, and what PyTorch does to modules."""

import copy
import json
import pathlib
import pickle
import subprocess

import cyfa
import pytest
import torch
from cyfa import nn
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests/vectors"
STORED = sorted(p.parent.name for p in VECTORS.glob("*/expected.safetensors"))
LIMIT = 1e-4  # of stored values, as in tests/model/vectors_test.cc
ROUNDING = 2e-5  # relative L2 norm between two float32 computations of the same thing


def blurry_window() -> dict:
    """The one type without stored values: the parity config, made small."""
    config = json.loads((ROOT / "configs/parity/bla-rho2.json").read_text())
    return config | {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 24, "num_heads": 2, "head_dim": 8, "num_slots": 8,
                     "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}


SMALL = {name: VECTORS / name for name in STORED} | {"blurry_window": blurry_window()}
every_type = pytest.mark.parametrize("name", SMALL)


def make(name: str) -> nn.CausalLM:
    """The stored model, or one with random parameters."""
    return nn.CausalLM.from_checkpoint(SMALL[name]) if name in STORED else nn.CausalLM(SMALL[name], seed=3)


@torch.no_grad()
def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


def ids_of(batch=2, length=19) -> torch.Tensor:
    return torch.randint(0, 24, (batch, length), generator=torch.Generator().manual_seed(5))


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_equal_gradients(a: dict, b: dict, limit=ROUNDING):
    assert a.keys() == b.keys()
    scale = max(float(g.norm()) for g in b.values())
    for name, g in b.items():
        assert float((a[name] - g).norm()) <= limit * max(float(g.norm()), 1e-3 * scale), name


def test_every_model_type_is_tested():
    tested = {nn.describe(config)["model_type"] for config in SMALL.values()}
    assert tested == {kind["model_type"] for kind in nn.model_types()}


@pytest.mark.parametrize("name", STORED)
def test_stored_values(name):
    expected = load_file(VECTORS / name / "expected.safetensors")
    stored = load_file(VECTORS / name / "model.safetensors")
    model = make(name)
    assert model.state_dict().keys() == stored.keys()
    assert all(torch.equal(model.state_dict()[key], stored[key]) for key in stored)
    ids = expected["input_ids"]
    model.eval()
    assert rel(model(ids).logits, expected["logits"]) < LIMIT
    loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).loss
    assert abs(float(loss) - float(expected["loss"])) < LIMIT
    for key, g in gradients(model, loss).items():
        assert rel(g, expected["grad." + key]) < LIMIT, key


@every_type
def test_recomputed_engine_and_checkpointed_gradients_are_the_transparent_ones(name):
    model, ids = make(name).eval(), ids_of()
    targets = ids.roll(-1, 1)
    plain = gradients(model, model(ids, targets).loss)
    assert_equal_gradients(gradients(model, model(ids, targets, recompute=True).loss), plain)
    x = model.embeddings(ids)
    for block in model.blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    assert_equal_gradients(gradients(model, model.loss_of(x, targets)), plain)
    for recompute in (False, True):
        engine = cyfa.train_engine(model, recompute=recompute)
        model.zero_grad()
        engine.begin_step()
        loss = engine.loss(ids, targets)
        loss.backward()
        assert_equal_gradients({key: p.grad for key, p in model.named_parameters()}, plain)


@every_type
@torch.no_grad()
def test_segments_and_packed_sequences_equal_whole_ones(name):
    model, ids = make(name).eval(), ids_of()
    whole = model(ids, return_state=True)
    first = model(ids[:, :8], return_state=True)
    kept = copy.deepcopy(first.state)
    second = model(ids[:, 8:], state=first.state, return_state=True)
    assert rel(torch.cat([first.logits, second.logits], 1), whole.logits) < ROUNDING
    for layer, (a, b) in enumerate(zip(second.state, whole.state)):
        assert all(rel(x, y) < ROUNDING for x, y in zip(a, b)), layer
    assert all(torch.equal(x, y) for a, b in zip(first.state, kept) for x, y in zip(a, b)), "a forward changed its initial state"
    packed = model(torch.cat([ids[0, :8], ids[1, :11]])[None], cu_seqlens=torch.tensor([0, 8, 19])).logits[0]
    assert rel(packed[:8], whole.logits[0, :8]) < ROUNDING and rel(packed[8:], whole.logits[1, :11]) < ROUNDING


@every_type
def test_mixer_and_block_alone(name):
    model = make(name).eval()
    whole = model.blocks[1]
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    block = nn.Block(SMALL[name], 1).eval()
    block.load_state_dict(whole.state_dict())
    y, state = block(x, return_state=True)
    assert torch.equal(y, whole(x)) and y.shape == x.shape
    assert [list(s.shape[1:]) for s in block.initial_state(2)] == [s["shape"] for s in block.state_specs]
    assert len(state) == len(block.state_specs)
    prefix = model.layout["mixer"] + "."
    mixer = nn.Mixer(SMALL[name], 1).eval()
    mixer.load_state_dict({key.removeprefix(prefix): v for key, v in whole.state_dict().items() if key.startswith(prefix)})
    first, state = mixer(x[:, :4], return_state=True)
    assert rel(torch.cat([first, mixer(x[:, 4:], state=state)], 1), mixer(x)) < ROUNDING
    mixer(x.requires_grad_()).square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad is not None for p in mixer.parameters())


@every_type
def test_modules_copy_pickle_and_swap(name):
    model, ids = make(name).eval(), ids_of()
    logits = model(ids).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert rel(other(ids).logits, logits) < ROUNDING  # not to the bit: the order of sums depends on the memory's alignment
        with torch.no_grad():
            other.embeddings.weight.mul_(torch.linspace(0, 2, 16))
        assert rel(other(ids).logits, logits) > 1e-3
        assert torch.equal(model(ids).logits, logits), "a copy shares parameters with the original"
    swapped = {key: p.detach() * 2 for key, p in model.named_parameters()}
    assert rel(torch.func.functional_call(model, swapped, ids).logits, logits) > 1e-3
    assert torch.equal(model(ids).logits, logits)


@every_type
def test_meta_device(name):
    config = SMALL[name]
    model = nn.CausalLM(config, device="meta")
    assert all(p.is_meta for p in model.parameters())
    assert model(ids_of().to("meta")).logits.shape == (2, 19, 24)
    model.to_empty(device="cpu")
    model.initialise(7)
    same = nn.CausalLM(config, seed=7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters()))
    torch.manual_seed(1)
    model.reset_parameters()
    assert all(p.isfinite().all() for p in model.parameters())
    assert not torch.equal(model.embeddings.weight, same.embeddings.weight)


@every_type
def test_autocast_computes_matrices_in_bf16_and_keeps_gates_in_fp32(name):
    model, ids = make(name).eval(), ids_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, ids.roll(-1, 1)).loss
    assert all(g.dtype == torch.float32 for g in gradients(model, loss).values())
    # Matrices that are rounded beforehand change nothing, the other parameters would: only matrices are rounded.
    roles = {row["name"]: row["role"] for row in nn.describe(SMALL[name])["parameters"]}
    rounded = {key: p.detach().bfloat16().float() for key, p in model.named_parameters()}
    matrices = {key: p for key, p in rounded.items() if roles[key] == "matrix"}
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids).logits
        assert rel(torch.func.functional_call(model, matrices, ids).logits, logits) < ROUNDING
        assert rel(torch.func.functional_call(model, rounded, ids).logits, logits) > ROUNDING
    change = rel(logits, model(ids).logits)
    assert change > 1e-6
    if name != "raven":  # whose router chooses other slots when its scores are rounded
        assert change < 0.1


@every_type
def test_float16_is_computed_in_float32(name):
    model, rounded, ids = make(name).eval().half(), make(name).eval(), ids_of()
    with torch.no_grad():
        for p in rounded.parameters():
            p.copy_(p.half())
    targets = ids.roll(-1, 1)
    logits = model(ids).logits
    assert logits.dtype == torch.float32 and rel(logits, rounded(ids).logits) < ROUNDING
    with torch.autocast("cpu", dtype=torch.float16):
        assert rel(rounded(ids).logits, logits) < ROUNDING
    found, wanted = gradients(model, model(ids, targets).loss), gradients(rounded, rounded(ids, targets).loss)
    assert all(g.dtype == torch.float16 for g in found.values())
    assert_equal_gradients({key: g.float() for key, g in found.items()}, wanted, 1e-3)
    decoding = cyfa.engine.StepEngine(model).begin(len(ids))
    for t in range(ids.shape[1]):
        assert rel(decoding.step(ids[:, t]), logits[:, t]) < ROUNDING
    with pytest.raises(ValueError, match="parameters in float16, wanted float32"):
        cyfa.train_engine(model)


@every_type
def test_torch_compile(name):
    torch._dynamo.reset()
    model, ids = make(name).eval(), ids_of()
    targets = ids.roll(-1, 1)
    plain = gradients(model, model(ids, targets).loss)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_equal_gradients(gradients(model, compiled(ids, targets).loss), plain)
    assert rel(compiled(ids).logits, model(ids).logits) < ROUNDING


@pytest.mark.parametrize("name", ["cyclic_flow", "mamba3_mimo", "transformer"])
def test_opcheck(name):
    model, ids = make(name), ids_of(length=6)
    block = model.blocks[0]
    x = torch.randn(2, 6, 16)
    params = [p.detach() for p in block.tensors()]
    of_block = (model.config_text, "block", 0, None, torch.float32, None)
    forward, backward = torch.ops.cyfa._part_forward, torch.ops.cyfa._part_backward
    torch.library.opcheck(forward, (x, params, None, *of_block))
    torch.library.opcheck(backward, (torch.randn(2, 6, 16), x, params, None, *of_block, [0, 2, 3]))
    rest = (0, None, torch.float32, None)
    torch.library.opcheck(forward, (x, [p.detach() for p in model.head_weights()], ids, model.config_text, "loss", *rest))
    torch.library.opcheck(forward, (ids, [model.embeddings.weight.detach()], None, model.config_text, "embed", *rest))


@every_type
def test_optimizer_groups_follow_the_table(name):
    model = make(name)
    decays = {row["name"]: row["weight_decay"] for row in nn.describe(SMALL[name])["parameters"]}
    names = {p: key for key, p in model.named_parameters()}
    decayed, others = nn.optimizer_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert sorted(names[p] for p in decayed["params"]) == sorted(key for key in decays if decays[key])
    assert sorted(names[p] for p in others["params"]) == sorted(key for key in decays if not decays[key])
    wrapped = torch.nn.Sequential(torch.nn.Linear(2, 2), nn.Mixer(SMALL[name]))
    assert sum(len(g["params"]) for g in nn.optimizer_groups(wrapped, 0.1)) == len(list(wrapped.parameters()))


def test_training_lowers_the_loss():
    model = nn.CausalLM(SMALL["cyclic_flow"], seed=1)
    optimizer = torch.optim.AdamW(nn.optimizer_groups(model, 0.01), lr=1e-2)
    ids = torch.arange(48).remainder(7)[None]
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(ids[:, :-1], ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 2.5 and losses[-1] < 0.5


def test_a_seed_gives_the_model_of_the_program(tmp_path):
    program = cyfa.library.parent / "cyfa"
    if not program.is_file():
        pytest.skip(f"no program {program}: build it with `make build`")
    config = VECTORS / "cyclic_flow/config.json"
    subprocess.run([program, "init", config, tmp_path / "m", "--seed", "7"], check=True, capture_output=True)
    stored = load_file(tmp_path / "m/model.safetensors")
    assert stored.keys() == nn.CausalLM(config).state_dict().keys()
    for key, value in nn.CausalLM(config, seed=7).state_dict().items():
        assert torch.equal(value, stored[key]), key


def test_checkpoints_that_do_not_fit_are_named(tmp_path):
    (tmp_path / "config.json").write_text((VECTORS / "gla/config.json").read_text())
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        nn.CausalLM.from_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((VECTORS / "gsa/model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="missing tensors .* unexpected tensors"):
        nn.CausalLM.from_checkpoint(tmp_path)


IDS = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: nn.Mixer(SMALL["gla"], 5), r"layer is 5, wanted 0 \.\. 1"),
        (lambda m: nn.CausalLM("no-such"), "no-such: no such config; wanted .* cyfa-400m"),
        (lambda m: nn.CausalLM(m.config | {"num_slot": 3}), "num_slot"),
        (lambda m: nn.CausalLM({}), "model_type is absent"),
        (lambda m: m(IDS.float()), "ids have type Float"),
        (lambda m: m(IDS + 99), "ids hold 99, wanted 0"),
        (lambda m: m(IDS, IDS[:, :2]), "targets has shape"),
        (lambda m: m(IDS, state=m.initial_state(2)[:1]), "state has 1 layers, wanted 2"),
        (lambda m: m(IDS, state=m.initial_state(3)), "initial_state has shape"),
        (lambda m: m(IDS, cu_seqlens=torch.tensor([0, 3])), "packed batch"),
        (lambda m: m(IDS, recompute=True, return_state=True), "recompute takes no states"),
        (lambda m: m.blocks[0](torch.zeros(2, 3, 5)), r"x has shape \[2, 3, 5\].*\[B, T, 16\]"),
        (lambda m: m.blocks[0](torch.zeros(16)), r"x has shape \[16\].*\[B, T, 16\]"),
        (lambda m: nn.Mixer(SMALL["gla"])(torch.zeros(2, 3, 16, dtype=torch.long)), "type Long"),
        (lambda m: m.logits(torch.zeros(2, 16)), "x has shape"),
    ],
)
def test_errors_are_value_errors_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call(make("cyclic_flow"))
