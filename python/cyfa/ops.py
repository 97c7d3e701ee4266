"""The operators: Cyclic Flow Attention and the recurrences of its baselines, as functions of tensors.

All of them are differentiable in every floating-point input, run on the CPU and on NVIDIA GPUs, and work with torch.compile, autocast (they
choose their own types), no_grad, inference_mode and activation checkpointing. A second derivative and vmap are refused. Steps, for
decoding, update their state in place and have no gradient.

Shapes: B batch, T tokens, N sequences (B, or as many as `cu_seqlens` bounds), H heads, K and V widths of a head, M stored slots, m = M - 1
active slots. q, k and v are all float64, all float32 or all bfloat16; states are float32 (float64 for float64), clocks float64.

`backend` is "auto" (the fastest that takes the inputs), "reference" (the definition, in float64), "portable" or "sm90".
"""

import inspect
import json
from typing import NamedTuple, Optional

import torch
from torch import Tensor

_ops = torch.ops.cyfa


def _call(op, *arguments, **options):
    """Calls an op of the library. vmap, grad, jvp and the like batch or differentiate an op by rules of its own, which these have not."""
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"cyfa.ops.{op.__name__}: vmap and other transforms of torch.func are not supported; use the batch dimension B in place of "
            "vmap, and Tensor.backward() or torch.autograd.grad() in place of torch.func.grad"
        )
    given = {name: x for name, x in options.items() if x is not None}  # the dispatcher takes about 1 us for each
    try:
        return op(*arguments, **given)
    except RuntimeError as error:
        words = str(error)
        if "Declaration: cyfa::" not in words and "Schema: cyfa::" not in words:  # quoted where arguments do not fit it
            raise
        raise TypeError(words.split("\n")[0].split(" Declaration: ")[0].split(" Schema: ")[0]) from None


class CyclicFlowState(NamedTuple):
    """The memory of N sequences."""

    k: Tensor
    """[N, H, K, M] float32: keys"""
    v: Tensor
    """[N, H, M, V] float32: values"""
    clock: Tensor
    """[N, H] float64"""


def cyclic_flow(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor,
    delta: Tensor,
    beta: Tensor,
    readout: Tensor,
    *,
    q_norm_weight: Optional[Tensor] = None,
    k_norm_weight: Optional[Tensor] = None,
    initial_state: Optional[CyclicFlowState] = None,
    cu_seqlens: Optional[Tensor] = None,
    scale: Optional[float] = None,
    norm_eps: float = 1e-6,
    final_state: bool = True,
    save_scores: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Optional[CyclicFlowState]]:
    """Cyclic Flow Attention over whole sequences.

    Args:
        q, k: [B, T, H, K].
        v: [B, T, H, V].
        log_alpha: [B, T, H], logarithm of the forget gate, at most 0.
        delta: [B, T, H], clock increments.
        beta: [B, T, H], write strengths.
        readout: [H, m, m].
        q_norm_weight, k_norm_weight: [K]; without them q and k are used as they come.
        initial_state: the memory before the first token; never changed. Default: empty, with the clock at 0.
        cu_seqlens: [N + 1] integers, the bounds of packed sequences; B is 1 then. Empty sequences are allowed.
        scale: factor of the dot products; default K ** -0.5.
        final_state: whether to compute the memory after the last token.
        save_scores: whether forward keeps the slot scores, M numbers a token and head, for backward, which otherwise computes them again.

    Returns:
        o [B, T, H, V], and the final state, or None.
    """
    before = initial_state if initial_state is not None else (None, None, None)
    o, state_k, state_v, clock = _call(
        _ops.cyclic_flow,
        q,
        k,
        v,
        log_alpha,
        delta,
        beta,
        readout,
        q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight,
        initial_k=before[0],
        initial_v=before[1],
        initial_clock=before[2],
        cu_seqlens=cu_seqlens,
        scale=scale,
        norm_eps=norm_eps,
        final_state=final_state,
        save_scores=save_scores,
        backend=backend,
    )
    return o, CyclicFlowState(state_k, state_v, clock) if final_state else None


def cyclic_flow_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_alpha: Tensor,
    delta: Tensor,
    beta: Tensor,
    readout_table: Tensor,
    state: CyclicFlowState,
    *,
    q_norm_weight: Optional[Tensor] = None,
    k_norm_weight: Optional[Tensor] = None,
    scale: Optional[float] = None,
    norm_eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    """One token of each of B sequences. Updates `state` in place; no gradient.

    Args:
        q, k: [B, H, K].
        v: [B, H, V].
        log_alpha, delta, beta: [B, H].
        readout_table: [H, M, M], from readout_table().
        state: contiguous; k and v in float32, or both in bfloat16.

    Returns:
        o [B, H, V].
    """
    return _call(
        _ops.cyclic_flow_step,
        q,
        k,
        v,
        log_alpha,
        delta,
        beta,
        readout_table,
        state[0],
        state[1],
        state[2],
        q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight,
        scale=scale,
        norm_eps=norm_eps,
        backend=backend,
    )


def readout_table(readout: Tensor) -> Tensor:
    """The form of the readout [H, m, m] that steps take, [H, M, M]. It depends on the weights alone: compute it once."""
    return _call(_ops.cyclic_flow_readout_table, readout)


def empty_state(sequences: int, heads: int, K: int, V: int, slots: int, device: "torch.device | str" = "cpu") -> CyclicFlowState:
    """The empty memory of `sequences` sequences, keys [N, H, K, M], values [N, H, M, V] and clock [N, H]; `slots` is M."""
    return CyclicFlowState(
        torch.zeros(sequences, heads, K, slots, device=device),
        torch.zeros(sequences, heads, slots, V, device=device),
        torch.zeros(sequences, heads, dtype=torch.float64, device=device),
    )


class BackendOffer(NamedTuple):
    """Whether a backend takes some inputs."""

    backend: str
    refusal: str
    """Why not; empty if it does."""


def cyclic_flow_backends(q, k, v, log_alpha, delta, beta, readout, *, initial_state=None, **options) -> list[BackendOffer]:
    """The backends of cyclic_flow for these inputs, fastest first. The first without a refusal is what backend="auto" runs."""
    before = initial_state if initial_state is not None else (None, None, None)
    state = {"initial_k": before[0], "initial_v": before[1], "initial_clock": before[2]}
    text = _call(_ops.cyclic_flow_backends, q, k, v, log_alpha, delta, beta, readout, **state, **options)
    return [BackendOffer(**offer) for offer in json.loads(text)]


def recurrence_backends(op: str, q, k, v, **options) -> list[BackendOffer]:
    """The same for a recurrence by its name, such as "scalar_gated_la"; its own arguments are passed by name."""
    if "log_gamma" in options:
        options["log_alpha"] = options.pop("log_gamma")
    return [BackendOffer(**offer) for offer in json.loads(_call(_ops.recurrence_backends, op, q, k, v, **options))]


_SHAPES = {"H": "[H]", "BTH": "[B, T, H]", "BTHK": "[B, T, H, K]", "BTHV": "[B, T, H, V]"}


def _define_recurrence(entry):
    """The functions of one entry of the C++ table of recurrences: the op and its step, with signature and documentation."""
    name, own = entry["op"], entry["arguments"]
    op, step = getattr(_ops, name), getattr(_ops, name + "_step")
    documented = "".join(f"\n        {a['name']}: {_SHAPES[a['shape']]}." for a in own)
    of_steps = "".join(f"\n        {a['name']}: {_SHAPES[a['shape']].replace('T, ', '')}." for a in own)

    def whole(*arguments, **options):
        return _call(op, *arguments, **options)

    def one_token(*arguments, **options):
        return _call(step, *arguments, **options)

    whole.__doc__ = f"""{entry["definition"]}, o_t = S_t^T (scale q_t), over whole sequences.

    Args:
        q, k: [B, T, H, K].
        v: [B, T, H, V].{documented}
        initial_state: [N, H, K, V]; default zeros. Never changed.
        cu_seqlens: [N + 1], the bounds of packed sequences; B is 1 then.
        scale: default K ** -0.5.

    Returns:
        o [B, T, H, V] and the final state [N, H, K, V].
    """
    one_token.__doc__ = f"""{entry["definition"]} for one token of each of B sequences. Updates `state` in place; no gradient.

    Args:
        q, k: [B, H, K].
        v: [B, H, V].{of_steps}
        state: [B, H, K, V] float32, contiguous.

    Returns:
        o [B, H, V].
    """
    for function, own_name, torch_op in ((whole, name, op), (one_token, name + "_step", step)):
        function.__name__ = function.__qualname__ = own_name
        function.__signature__ = _signature(torch_op.default._schema)
        globals()[own_name] = function
        __all__.append(own_name)


def _signature(schema):
    types = {"Tensor": Tensor, "Optional[Tensor]": Optional[Tensor], "Optional[float]": Optional[float], "int": int, "str": str}
    parameters = [
        inspect.Parameter(
            a.name,
            inspect.Parameter.KEYWORD_ONLY if a.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
            annotation=types.get(str(a.type), inspect.Parameter.empty),
        )
        for a in schema.arguments
    ]
    returns = Tensor if len(schema.returns) == 1 else tuple[Tensor, Tensor]
    return inspect.Signature(parameters, return_annotation=returns)


__all__ = [
    "BackendOffer",
    "CyclicFlowState",
    "cyclic_flow",
    "cyclic_flow_backends",
    "cyclic_flow_step",
    "empty_state",
    "readout_table",
    "recurrence_backends",
]
for _entry in json.loads(_ops.recurrence_table()):
    _define_recurrence(_entry)
