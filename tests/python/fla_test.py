"""cyfa.compat.fla against the definition, token by token in float64, and what users of flash-linear-attention 0.6 rely on.

Its own test files are the specification. Each case of theirs is here, with the same shapes and smaller error limits:

    tests/ops/test_cyfa.py                              here
      test_chunk                                          test_chunk
      test_chunk_varlen                                   test_chunk_of_packed_sequences
      test_chunk_without_final_state                      test_chunk_without_final_state
      test_fused_recurrent                                test_fused_recurrent
      test_fused_recurrent_invalid_shape                  test_fused_recurrent_names_shapes_that_do_not_fit
      test_fused_recurrent_noncontiguous_weights          test_fused_recurrent_takes_strided_weights
      test_fused_recurrent_prefill                        test_steps_continue_a_chunk
      test_fused_recurrent_requires_grad                  test_fused_recurrent_refuses_gradients
    tests/layers/test_cyfa_layer.py
      test_layer                                          test_layer
      test_layer_eval_with_grad_uses_chunk                test_layer_gives_gradients_in_eval_mode
      test_cache_layer_idx                                test_cache_needs_a_layer_number
      test_cached_multi_token_attention_mask              test_mask_of_several_tokens_on_a_cache
    tests/models/test_modeling_cyfa.py
      test_modeling                                       test_model_packed_equals_batch
      test_generation                                     test_model_steps_of_padded_batches
      test_logits_to_keep_with_labels                     test_model_logits_to_keep_with_labels
"""

import contextlib
import copy
import inspect
import json
import math
import pathlib

import pytest
import torch
from cyfa import nn
from cyfa.compat import fla
from cyfa.compat.fla import Cache, CyclicFlowAttention, chunk_cyfa, fused_recurrent_cyfa, naive_recurrent_cyfa
from safetensors.torch import load_file

torch.set_num_threads(1)  # the shapes are small

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "vectors"
TOKENS = ("q", "k", "v", "g", "delta", "beta")
# Relative L2 norms of errors: sums in float32, and the rounding of results in 16 bits.
LIMIT = {torch.float32: 2e-5, torch.float16: 4e-4, torch.bfloat16: 3e-3}


# The definition in relative time: slot r of the memory holds what is r ticks of the clock old.


def frequencies(m):
    return torch.arange(1, (m - 1) // 2 + 1, dtype=torch.float64)


def moved(slots, ticks):
    """The contents of a ring of slots [..., m, X], moved by `ticks` [...] with their trigonometric interpolation."""
    m = slots.shape[-2]
    turns = torch.fft.rfftfreq(m, dtype=torch.float64) * ticks[..., None]
    return torch.fft.irfft(torch.fft.rfft(slots, dim=-2) * torch.exp(-2j * math.pi * turns)[..., None], n=m, dim=-2)


def slots_of(rows, clock):
    """Stored rows [..., M, X] and clock [...] as slots [..., m, X]."""
    m = rows.shape[-2] - 1
    j, place = frequencies(m), torch.arange(m, dtype=torch.float64)
    angles = 2 * math.pi / m * (clock[..., None, None] - place[:, None]) * j  # [..., m, j]
    return (rows[..., :1, :] + math.sqrt(2) * (angles.cos() @ rows[..., 2::2, :] - angles.sin() @ rows[..., 3::2, :])) / math.sqrt(m)


def rows_of(slots, clock, padding):
    """The inverse of slots_of(), which does not look at row 1, the padding [..., X]."""
    m = slots.shape[-2]
    j, place = frequencies(m), torch.arange(m, dtype=torch.float64)
    angles = 2 * math.pi / m * (clock[..., None, None] - place) * j[:, None]  # [..., j, m]
    pairs = math.sqrt(2) * torch.stack([angles.cos() @ slots, -angles.sin() @ slots], -2).flatten(-3, -2)
    rows = torch.cat([slots.sum(-2, keepdim=True), pairs], -2) / math.sqrt(m)
    return torch.cat([rows[..., :1, :], padding[..., None, :], rows[..., 1:, :]], -2)


def definition(q, k, v, g, delta, beta, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale=None, initial_state=None,
               output_final_state=True, cu_seqlens=None):  # fmt: skip
    """The operator in float64, with autograd: o and (keys, values, clock)."""
    tokens = [x.double() for x in (q, k, v, g, delta, beta)]
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        parts = []
        for n, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            own = [x[:, begin:end] for x in tokens]
            state = None if initial_state is None else [x[n : n + 1] for x in initial_state]
            parts.append(definition(*own, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale, state, True))
        return torch.cat([o for o, _ in parts], 1), tuple(torch.cat(x) for x in zip(*(state for _, state in parts)))
    q, k, v, g, delta, beta = tokens
    norms = ((q, q_norm_weight, q_norm_eps), (k, k_norm_weight, k_norm_eps))
    q, k = (x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double() for x, weight, eps in norms)
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    readout, m = readout.double(), readout.shape[-1]
    (B, T, H, K), V = q.shape, v.shape[-1]
    if initial_state is None:
        initial_state = torch.zeros(B, H, K, m + 1), torch.zeros(B, H, m + 1, V), torch.zeros(B, H)
    keys, values, clock = (x.double() for x in initial_state)
    padding = keys[..., 1], values[..., 1, :]
    keys, values = slots_of(keys.mT, clock), slots_of(values, clock)
    newest = torch.eye(m, 1).double()
    outputs = []
    for t in range(T):
        clock = clock + delta[:, t]
        keep, write = g[:, t].exp()[..., None, None], beta[:, t, :, None, None] * newest
        keys = keep * moved(keys, delta[:, t]) + write * k[:, t, :, None]
        values = keep * moved(values, delta[:, t]) + write * v[:, t, :, None]
        read = torch.softmax(readout @ (keys @ q[:, t, :, :, None]), -2)
        outputs.append((values.mT @ (readout.mT @ read)).squeeze(-1))
    faded = [x * g.sum(1).exp()[..., None] for x in padding]
    if not output_final_state:
        return torch.stack(outputs, 1), None
    return torch.stack(outputs, 1), (rows_of(keys, clock, faded[0]).mT, rows_of(values, clock, faded[1]), clock)


def make_inputs(B, T, H, K, V, M, dtype, initial_state=False, cu_seqlens=None):
    inputs = {
        "q": torch.randn(B, T, H, K).to(dtype),
        "k": torch.randn(B, T, H, K).to(dtype),
        "v": torch.randn(B, T, H, V).to(dtype),
        "g": -0.1 * torch.rand(B, T, H),
        "delta": torch.randn(B, T, H).sigmoid(),
        "beta": torch.randn(B, T, H).sigmoid(),
        "readout": torch.eye(M - 1).repeat(H, 1, 1) + 0.05 * torch.randn(H, M - 1, M - 1),
        "q_norm_weight": 1 + 0.1 * torch.randn(K),
        "k_norm_weight": 1 + 0.1 * torch.randn(K),
    }
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    if initial_state:
        N = B if cu_seqlens is None else len(cu_seqlens) - 1
        state = (0.1 * torch.randn(N, H, K, M), 0.1 * torch.randn(N, H, M, V), 17 + torch.rand(N, H))
        inputs["initial_state"] = tuple(x.requires_grad_() for x in state)
    return inputs | {"q_norm_eps": 1e-6, "k_norm_eps": 1e-6, "cu_seqlens": cu_seqlens, "output_final_state": True}


@torch.no_grad()
def rel(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


def assert_near(results, wanted, limit):
    for name, x in results.items():
        assert x.shape == wanted[name].shape and x.isfinite().all(), name
        assert rel(x, wanted[name]) < limit, f"{name}: {rel(x, wanted[name]):.2e}"


def results_of(op, inputs, **options):
    """Outputs and, where inputs ask for it, their gradients under fixed upstream gradients."""
    o, state = op(**inputs | options)
    outputs = {"o": o} | dict(zip(("keys", "values", "clock"), state or ()))
    leaves = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    leaves |= dict(zip(("keys0", "values0", "clock0"), inputs.get("initial_state", ())))
    if torch.is_grad_enabled():
        draw = torch.Generator().manual_seed(9)
        loss = sum((x.double() * torch.randn(x.shape, generator=draw).double()).sum() for x in outputs.values())
        outputs |= {"d_" + name: g for name, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())))}
    return outputs


def compare_chunk(inputs):
    dtype = inputs["q"].dtype
    wanted = results_of(definition, inputs)
    for checkpoint_level in (0, 1):
        found = results_of(chunk_cyfa, inputs, checkpoint_level=checkpoint_level)
        assert found["o"].dtype == dtype and found["d_q"].dtype == dtype
        assert found.keys() == wanted.keys()
        assert_near(found, wanted, LIMIT[dtype])


@pytest.mark.parametrize(
    "B, T, H, K, V, M, dtype, initial_state",
    [
        (1, 64, 2, 32, 32, 128, torch.float32, False),
        (2, 256, 2, 64, 64, 128, torch.float32, True),
        (2, 100, 3, 64, 64, 128, torch.float16, True),
        (1, 64, 1, 128, 128, 128, torch.bfloat16, False),
        (1, 64, 1, 256, 256, 128, torch.bfloat16, True),
        (1, 65, 2, 48, 32, 128, torch.float16, False),
        (1, 65, 2, 32, 48, 128, torch.float16, True),
    ],
)
def test_chunk(B, T, H, K, V, M, dtype, initial_state):
    torch.manual_seed(42)
    compare_chunk(make_inputs(B, T, H, K, V, M, dtype, initial_state))


@pytest.mark.parametrize("initial_state", [False, True])
@pytest.mark.parametrize("cu_seqlens, dtype", [([0, 64, 128], torch.float32), ([0, 15, 100, 256], torch.float16)])
def test_chunk_of_packed_sequences(cu_seqlens, dtype, initial_state):
    torch.manual_seed(42)
    cu = torch.tensor(cu_seqlens, dtype=torch.int32)
    compare_chunk(make_inputs(1, cu_seqlens[-1], 2, 64, 64, 128, dtype, initial_state, cu))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_chunk_without_final_state(dtype):
    torch.manual_seed(42)
    inputs = make_inputs(1, 65, 2, 64, 64, 128, dtype, initial_state=True)
    compare_chunk(inputs | {"output_final_state": False})
    assert chunk_cyfa(**inputs | {"output_final_state": False})[1] is None


@pytest.mark.parametrize("T", [1, 64])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@torch.no_grad()
def test_fused_recurrent(T, packed, dtype):
    torch.manual_seed(42)
    B, tokens = (1, 2 * T + 3) if packed else (2, T)
    cu = torch.tensor([0, T, tokens], dtype=torch.int32) if packed else None
    inputs = make_inputs(B, tokens, 2, 64, 64, 128, dtype, True, cu)
    before = copy.deepcopy(inputs["initial_state"])
    found = results_of(fused_recurrent_cyfa, inputs)
    assert found["o"].dtype == dtype
    assert_near(found, results_of(definition, inputs), LIMIT[dtype])
    assert all(torch.equal(a, b) for a, b in zip(inputs["initial_state"], before)), "a call changed its initial state"


@pytest.mark.parametrize("T", [1, 64])
@pytest.mark.parametrize("name", ["k", "q_norm_weight", "k_norm_weight"])
@torch.no_grad()
def test_fused_recurrent_names_shapes_that_do_not_fit(T, name):
    inputs = make_inputs(1, T, 1, 32, 32, 16, torch.float32)
    inputs[name] = inputs[name][..., :-1]
    with pytest.raises(ValueError, match="Q/K RMSNorm wants q and k of one shape"):
        fused_recurrent_cyfa(**inputs)


@pytest.mark.parametrize("T", [1, 64])
@torch.no_grad()
def test_fused_recurrent_takes_strided_weights(T):
    torch.manual_seed(42)
    inputs = make_inputs(1, T, 2, 64, 64, 128, torch.bfloat16, initial_state=True)
    for name in ("q_norm_weight", "k_norm_weight"):
        inputs[name] = torch.stack((inputs[name], torch.zeros_like(inputs[name])), dim=-1)[:, 0]
        assert not inputs[name].is_contiguous()
    assert_near(results_of(fused_recurrent_cyfa, inputs), results_of(definition, inputs), LIMIT[torch.bfloat16])


def part_of(inputs, begin, end):
    return {name: x[:, begin:end] if name in TOKENS else x for name, x in inputs.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_steps_continue_a_chunk(dtype):
    torch.manual_seed(42)
    inputs = make_inputs(2, 69, 2, 64, 64, 128, dtype)
    whole = results_of(chunk_cyfa, inputs)
    o, state = chunk_cyfa(**part_of(inputs, 0, 65))
    outputs = [o]
    for t in range(65, 69):
        o, state = fused_recurrent_cyfa(**part_of(inputs, t, t + 1), initial_state=state)
        outputs.append(o)
    found = {"o": torch.cat(outputs, 1)} | dict(zip(("keys", "values", "clock"), state))
    assert_near(found, whole, LIMIT[dtype])


@torch.no_grad()
def test_steps_of_a_long_sequence_keep_their_clock():
    torch.manual_seed(1)
    inputs = make_inputs(1, 400, 1, 16, 16, 128, torch.float32, initial_state=True)
    inputs["initial_state"] = (*inputs["initial_state"][:2], torch.full((1, 1), 1e6, dtype=torch.float64))
    whole = results_of(definition, inputs)
    state, outputs = inputs.pop("initial_state"), []
    for t in range(400):
        o, state = fused_recurrent_cyfa(**part_of(inputs, t, t + 1), initial_state=state)
        outputs.append(o)
    assert rel(torch.cat(outputs, 1), whole["o"]) < LIMIT[torch.float32]


@pytest.mark.parametrize("state_only", [False, True])
def test_fused_recurrent_refuses_gradients(state_only):
    inputs = make_inputs(1, 1, 1, 32, 32, 16, torch.float32, initial_state=state_only)
    if state_only:
        inputs = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    with pytest.raises(NotImplementedError, match="inference-only"):
        fused_recurrent_cyfa(**inputs)


def test_own_scale_and_epsilons():
    torch.manual_seed(2)
    inputs = make_inputs(2, 20, 2, 16, 24, 16, torch.float32) | {"scale": 0.4, "q_norm_eps": 0.5, "k_norm_eps": 1e-3}
    wanted = results_of(definition, inputs)
    for op in (chunk_cyfa, naive_recurrent_cyfa):
        assert_near(results_of(op, inputs), wanted, LIMIT[torch.float32])
    with torch.no_grad():
        assert_near(results_of(fused_recurrent_cyfa, part_of(inputs, 0, 1)), results_of(definition, part_of(inputs, 0, 1)), 2e-5)


def arguments(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name if p.default is p.empty else (p.name, p.default) for p in parameters if p.kind is not p.VAR_KEYWORD]


def test_signatures():
    common = ["q", "k", "v", "g", "delta", "beta", "readout", "q_norm_weight", "k_norm_weight", "q_norm_eps", "k_norm_eps",
              ("scale", None), ("initial_state", None), ("output_final_state", False), ("cu_seqlens", None)]  # fmt: skip
    assert arguments(naive_recurrent_cyfa) == arguments(fused_recurrent_cyfa) == common
    assert arguments(chunk_cyfa) == [*common, ("cu_seqlens_cpu", None), ("checkpoint_level", 0)]
    assert arguments(CyclicFlowAttention) == [
        ("hidden_size", 1024), ("expand_k", 1.0), ("expand_v", 1.0), ("head_dim", 256), ("num_heads", 4), ("mode", "chunk"),
        ("use_short_conv", True), ("conv_size", 4), ("conv_bias", False), ("num_slots", 128), ("checkpoint_level", 0), ("layer_idx", None),
        ("norm_eps", 1e-5)]  # fmt: skip
    assert arguments(CyclicFlowAttention.forward) == [
        "self", "hidden_states", ("attention_mask", None), ("past_key_values", None), ("use_cache", False), ("output_attentions", False)]


def changed(**other):
    inputs = make_inputs(1, 4, 2, 8, 8, 16, torch.float32, initial_state=True)
    return inputs | {name: make(inputs) if callable(make) else make for name, make in other.items()}


@pytest.mark.parametrize(
    "other, message",
    [
        ({"g": lambda x: -x["g"]}, "log_alpha"),
        ({"delta": lambda x: x["delta"][:, :2]}, r"delta has shape \[1, 2, 2\], wanted \[B, T, H\]"),
        ({"readout": lambda x: x["readout"][:, 1:, 1:]}, "readout is 14 x 14 per head, wanted m x m with m odd"),
        ({"v": lambda x: x["v"].double()}, "v has type Double, wanted Float"),
        ({"initial_state": lambda x: x["initial_state"][:2]}, "initial_state has 2 tensors, wanted 3"),
        ({"initial_state": lambda x: x["initial_state"][1::-1] + x["initial_state"][2:]}, "initial_state.k has shape"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "cu_seqlens"),
        ({"checkpoint_level": 2}, "checkpoint_level is 2, wanted 0 or 1"),
    ],
)
def test_bad_arguments_are_value_errors_in_words(other, message):
    with pytest.raises(ValueError, match=message):
        chunk_cyfa(**changed(**other))


# The layer.


def layer_definition(weights, x, state, H, eps, conv_size):
    """The layer in float64, from a state dict of flash-linear-attention."""
    w = {name: p.double() for name, p in weights.items()}
    x = x.double()
    heads = {}
    for s in "qkv":
        y = x @ w[f"{s}_proj.weight"].T
        if conv_size:
            filters = w[f"{s}_conv1d.weight"]
            y = torch.nn.functional.conv1d(y.mT, filters, w.get(f"{s}_conv1d.bias"), padding=conv_size - 1, groups=len(filters))
            y = y[..., : x.shape[1]].mT
        heads[s] = y.unflatten(-1, (H, -1))
    g = -w["A_log"].exp() * torch.nn.functional.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
    beta = (x @ w["b_proj.weight"].T + w["b_proj.bias"]).sigmoid()
    delta = (x.detach() @ w["d_proj.weight"].T + w["d_proj.bias"]).sigmoid()
    norms = {"q_norm_weight": w["q_norm.weight"], "k_norm_weight": w["k_norm.weight"], "q_norm_eps": eps, "k_norm_eps": eps}
    o, _ = definition(**heads, g=g, delta=delta, beta=beta, readout=w["readout"], **norms, initial_state=state)
    o = o * w["readout"].shape[-1]
    o = o / (o.square().mean(-1, keepdim=True) + eps).sqrt() * w["o_norm.weight"]
    gate = x @ w["g_proj.0.weight"].T @ w["g_proj.1.weight"].T + w["g_proj.1.bias"]
    return (o * gate.sigmoid().unflatten(-1, (H, -1))).flatten(-2) @ w["o_proj.weight"].T


def make_layer(dtype=torch.float32, **options):
    torch.manual_seed(42)
    layer = CyclicFlowAttention(**{"hidden_size": 64, "num_heads": 2, "head_dim": 32, "num_slots": 32, "layer_idx": 0} | options)
    with torch.no_grad():
        for p in layer.parameters():  # away from ones, zeros and identities
            p.add_(0.05 * torch.randn_like(p))
    return layer.to(dtype)


@pytest.mark.parametrize("use_short_conv", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_layer(use_short_conv, dtype):
    layer = make_layer(dtype, hidden_size=256, num_heads=4, head_dim=64, num_slots=128, use_short_conv=use_short_conv)
    x = torch.randn(2, 256, 256, dtype=dtype, requires_grad=True)
    y, attentions, cache = layer(x)
    assert y.shape == x.shape and y.dtype == dtype and y.isfinite().all() and attentions is None and cache is None
    y.sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None and tensor.grad.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_short_conv": False, "norm_eps": 1e-3, "checkpoint_level": 1},
        {"expand_k": 0.5, "expand_v": 1.5, "conv_size": 3, "conv_bias": True, "mode": "fused_recurrent"},
    ],
)
def test_layer_is_the_definition(options):
    layer = make_layer(**options)
    x = torch.randn(2, 30, 64, requires_grad=True)
    eps, conv_size = options.get("norm_eps", 1e-5), layer.conv_size if layer.use_short_conv else 0
    leaves = [x, *layer.parameters()]
    y = layer(x)[0]
    grad = torch.randn_like(y)
    want = layer_definition(dict(layer.named_parameters()), x, None, 2, eps, conv_size)
    assert rel(y, want) < 2e-5
    names = ["x", *(name for name, _ in layer.named_parameters())]
    found, wanted = torch.autograd.grad(y, leaves, grad), torch.autograd.grad(want, leaves, grad.double())
    for name, a, b in zip(names, found, wanted):
        assert rel(a, b) < 5e-5, name


def test_layer_has_the_names_of_flash_linear_attention():
    layer = CyclicFlowAttention(hidden_size=16, num_heads=2, head_dim=8, num_slots=8, conv_bias=True)
    q, v = [16, 16], [16, 16]
    assert {name: [*p.shape] for name, p in layer.state_dict().items()} == {
        "q_proj.weight": q, "k_proj.weight": q, "v_proj.weight": v, "a_proj.weight": [2, 16], "b_proj.weight": [2, 16], "b_proj.bias": [2],
        "d_proj.weight": [2, 16], "d_proj.bias": [2], "A_log": [2], "dt_bias": [2], "readout": [2, 7, 7], "q_norm.weight": [8],
        "k_norm.weight": [8], "q_conv1d.weight": [16, 1, 4], "k_conv1d.weight": [16, 1, 4], "v_conv1d.weight": [16, 1, 4],
        "q_conv1d.bias": [16], "k_conv1d.bias": [16], "v_conv1d.bias": [16], "g_proj.0.weight": [8, 16], "g_proj.1.weight": [16, 8],
        "g_proj.1.bias": [16], "o_norm.weight": [8], "o_proj.weight": [16, 16]}  # fmt: skip
    assert {name for name, p in layer.named_parameters() if getattr(p, "_no_weight_decay", False)} == {"A_log", "dt_bias"}


def test_layer_takes_weights_of_a_checkpoint():
    stored, config = load_file(VECTORS / "cyclic_flow/model.safetensors"), json.loads((VECTORS / "cyclic_flow/config.json").read_text())
    names = ("hidden_size", "num_heads", "head_dim", "expand_k", "expand_v", "num_slots", "norm_eps", "conv_size")
    layer = CyclicFlowAttention(**{"norm_eps": 1e-6} | {name: config[name] for name in names if name in config})
    prefix = "model.layers.1.attn."
    layer.load_state_dict({name.removeprefix(prefix): x for name, x in stored.items() if name.startswith(prefix)})
    mixer = nn.Mixer(VECTORS / "cyclic_flow", 1)
    mixer.load_state_dict(layer.state_dict())
    x = torch.randn(2, 11, config["hidden_size"])
    assert rel(layer(x)[0], mixer(x)) < 1e-6


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
def test_layer_gives_gradients_in_eval_mode(mode):
    layer = make_layer(torch.bfloat16, hidden_size=256, num_heads=4, head_dim=64, num_slots=128, mode=mode).eval()
    x = torch.randn(1, 32, 256, dtype=torch.bfloat16, requires_grad=True)
    layer(x)[0].sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None and tensor.grad.isfinite().all()


@torch.no_grad()
def test_cache_needs_a_layer_number():
    layer = CyclicFlowAttention(hidden_size=64, num_heads=1, head_dim=64, num_slots=32).eval()
    with pytest.raises(ValueError, match="layer_idx is None, wanted the layer's number"):
        layer(torch.randn(1, 1, 64), past_key_values=Cache(), use_cache=True)


@pytest.mark.parametrize("use_short_conv", [False, True])
@torch.no_grad()
def test_mask_of_several_tokens_on_a_cache(use_short_conv):
    layer = make_layer(torch.bfloat16, num_heads=1, head_dim=64, use_short_conv=use_short_conv).eval()
    prefix = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    caches = [Cache(), Cache()]
    for cache in caches:
        layer(prefix, past_key_values=cache, use_cache=True)
    x = torch.randn(2, 2, 64, dtype=torch.bfloat16)
    mask = torch.tensor([[0, 1], [1, 1]])
    y = layer(x, attention_mask=mask, past_key_values=caches[0], use_cache=True)[0]
    packed = torch.cat((x[0, 1:], x[1])).unsqueeze(0)
    want = layer(packed, past_key_values=caches[1], use_cache=True, cu_seqlens=torch.tensor([0, 1, 3], dtype=torch.int32))[0]
    assert torch.equal(y[mask.bool()], want[0])
    for name in ("recurrent_state", "conv_state"):
        assert all(torch.equal(a, b) for a, b in zip(caches[0][0][name] or (), caches[1][0][name] or ()))


def test_padding_is_no_token():
    layer = make_layer()
    x = torch.randn(3, 9, 64, requires_grad=True)
    mask = torch.tensor([[0] * 4 + [1] * 5, [1] * 7 + [0] * 2, [0] * 9])
    other = torch.where(mask[..., None] == 0, 1e4, x)
    cache = Cache()
    y = layer(x, attention_mask=mask, past_key_values=cache, use_cache=True)[0]
    assert torch.equal(layer(other, attention_mask=mask)[0], y), "what stands in place of padding matters"
    assert not y[mask == 0].any()
    for n, (begin, end) in enumerate([(4, 9), (0, 7)]):
        alone = Cache()
        assert rel(y[n, begin:end], layer(x[n : n + 1, begin:end], past_key_values=alone, use_cache=True)[0][0]) < 1e-6
        for name in ("recurrent_state", "conv_state"):
            assert all(rel(a[n : n + 1], b) < 1e-6 for a, b in zip(cache[0][name], alone[0][name])), name
    assert not any(s[2].any() for name in ("recurrent_state", "conv_state") for s in cache[0][name]), "a row of padding has a state"
    y.square().sum().backward()
    assert (x.grad.abs().sum(-1) > 0).equal(mask.bool())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.no_grad()
def test_layer_continues_from_a_cache(dtype):
    layer = make_layer(dtype, layer_idx=1).eval()
    x = torch.randn(2, 12, 64).to(dtype)
    whole, cache = layer(x)[0], Cache()
    outputs = [layer(x[:, :7], past_key_values=cache, use_cache=True)[0]]
    kept = copy.deepcopy(cache[1])
    looked = layer(x[:, 7:9], past_key_values=cache, use_cache=False)[0]
    for a, b in ((a, b) for name in ("recurrent_state", "conv_state") for a, b in zip(cache[1][name], kept[name])):
        assert torch.equal(a, b), "a call without use_cache changed the cache"
    outputs += [layer(x[:, t : t + 1], past_key_values=cache, use_cache=True)[0] for t in range(7, 12)]
    assert rel(torch.cat(outputs, 1), whole) < LIMIT[dtype] and rel(looked, whole[:, 7:9]) < LIMIT[dtype]
    assert (cache.get_seq_length(1), cache.get_seq_length(), len(cache)) == (12, 0, 2)
    assert [[*s.shape] for s in cache[1]["conv_state"]] == 3 * [[2, 64, 4]]
    cache.reorder_cache(torch.tensor([1, 1]))
    assert all(torch.equal(s[0], s[1]) for s in cache[1]["recurrent_state"])
    assert Cache.from_legacy_cache(cache.to_legacy_cache(), 12).get_seq_length(1) == 12


@torch.no_grad()
def test_caches_of_another_kind_are_refused():
    cache = pytest.importorskip("transformers").DynamicCache()
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache, wanted .* cyfa.compat.fla.Cache"):
        make_layer()(torch.randn(1, 2, 64), past_key_values=cache, use_cache=True)
    with pytest.raises(NotImplementedError, match="cannot go back"):
        Cache().crop(3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"expand_k": 0.3}, "expand_k is 0.3 and head_dim 256"),
        ({"num_slots": 7}, "num_slots"),
        ({"mode": "parallel"}, "mode is 'parallel', wanted 'chunk' or 'fused_recurrent'"),
        ({"checkpoint_level": 2}, "checkpoint_level is 2, wanted 0 or 1"),
    ],
)
def test_bad_layers_are_value_errors_in_words(options, message):
    with pytest.raises(ValueError, match=message):
        CyclicFlowAttention(**options)


def test_layer_copies_and_compiles():
    torch._dynamo.reset()
    layer = make_layer()
    x = torch.randn(1, 6, 64)
    assert torch.equal(copy.deepcopy(layer)(x)[0], layer(x)[0])
    assert rel(torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0], layer(x)[0]) < 1e-6


# The models.


def make_model(**options):
    pytest.importorskip("transformers")
    torch.manual_seed(42)
    config = fla.CyclicFlowAttentionConfig(
        **{"hidden_size": 128, "num_heads": 2, "head_dim": 64, "num_slots": 32, "num_hidden_layers": 2, "vocab_size": 256,
           "intermediate_size": 256, "initializer_range": 0.1} | options)  # fmt: skip
    return fla.CyclicFlowAttentionForCausalLM(config)


@pytest.mark.parametrize("checkpoint_level, use_short_conv", [(0, False), (0, True), (1, False), (1, True)])
def test_model_packed_equals_batch(checkpoint_level, use_short_conv):
    B, T = 4, 1024
    model = make_model(
        hidden_size=256, num_heads=4, num_slots=128, num_hidden_layers=4, checkpoint_level=checkpoint_level, use_short_conv=use_short_conv
    ).bfloat16()
    ids = torch.randint(256, (B, T))
    batch = model(ids, output_hidden_states=True).hidden_states[-1]
    packed = model(ids.view(1, -1), output_hidden_states=True, cu_seqlens=torch.arange(0, B * T + 1, T)).hidden_states[-1]
    assert batch.shape == (B, T, 256) and packed.shape == (1, B * T, 256)
    assert rel(packed, batch.view(1, B * T, -1)) < 1e-5
    packed.backward(torch.randn_like(packed))
    assert all(p.grad.isfinite().all() for name, p in model.named_parameters() if name.startswith("model.layers"))


@pytest.mark.parametrize("use_short_conv", [False, True])
@pytest.mark.parametrize("dtype, T, engine", [(torch.float16, 2000, True), (torch.float32, 200, False)])
@torch.no_grad()
def test_model_steps_of_padded_batches(use_short_conv, dtype, T, engine):
    """Steps through an engine, as in generate(), and without one."""
    model = make_model(hidden_size=512, num_heads=8, num_slots=128, use_short_conv=use_short_conv).to(dtype).eval()
    B, chunk = 4, T // 4
    ids = torch.randint(256, (B, T))
    first = torch.randint(1, chunk - 1, (B,))
    mask = torch.arange(T) >= first[:, None]
    want = [model(ids[n : n + 1, begin:], use_cache=False).logits for n, begin in enumerate(first)]
    with model._kept_engine.in_use() if engine else contextlib.nullcontext():
        out = model(ids[:, :chunk], attention_mask=mask[:, :chunk], use_cache=True)
        logits = [out.logits]
        for t in range(chunk, T):
            out = model(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], use_cache=True, past_key_values=out.past_key_values)
            logits.append(out.logits)
    assert engine == (model._kept_engine._engine is not None)
    logits = torch.cat(logits, 1)
    for n, begin in enumerate(first):
        assert rel(logits[n : n + 1, begin:], want[n]) < 2e-5, n


@torch.no_grad()
def test_model_logits_to_keep_with_labels():
    model = make_model().eval()
    ids = torch.randint(3, 256, (2, 65))
    want = model(ids, labels=ids, use_cache=False)
    found = model(ids, labels=ids, logits_to_keep=1, use_cache=False)
    assert found.logits.shape == want.logits.shape and torch.equal(found.loss, want.loss)
    assert model(ids, logits_to_keep=1, use_cache=False).logits.shape == (2, 1, 256)


def test_models_without_a_head_are_refused():
    with pytest.raises(ImportError, match="take CyclicFlowAttentionForCausalLM"):
        from cyfa.compat.fla import CyclicFlowAttentionModel  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute chunk_gla"):
        fla.chunk_gla
