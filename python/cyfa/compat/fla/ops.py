"""The operator of fla.ops.cyfa on cyfa.ops.cyclic_flow.

Shapes: q, k [B, T, H, K], v [B, T, H, V], gates [B, T, H], readout [H, m, m] with m = M - 1. N sequences: B, or len(cu_seqlens) - 1 with
B = 1. A state is (keys [N, H, K, M], values [N, H, M, V], clock [N, H]). Bad input raises ValueError in the words of cyfa.ops, where g is
called log_alpha.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from cyfa import ops
from cyfa.nn import wide

CyFAState = tuple[Tensor, Tensor, Tensor]


def chunk_cyfa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    delta: Tensor,
    beta: Tensor,
    readout: Tensor,
    q_norm_weight: Tensor,
    k_norm_weight: Tensor,
    q_norm_eps: float,
    k_norm_eps: float,
    scale: Optional[float] = None,
    initial_state: Optional[CyFAState] = None,
    output_final_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    cu_seqlens_cpu: Optional[Tensor] = None,
    checkpoint_level: int = 0,
) -> tuple[Tensor, Optional[CyFAState]]:
    """Cyclic Flow Attention over whole sequences, differentiable in every tensor, states included.

    Args:
        q, k: [B, T, H, K], before their RMSNorm, which is part of the operator.
        v: [B, T, H, V].
        g: [B, T, H], logarithm of the forget gate, at most 0.
        delta: [B, T, H], clock increments.
        beta: [B, T, H], write strengths.
        readout: [H, m, m].
        q_norm_weight, k_norm_weight: [K].
        q_norm_eps, k_norm_eps: of the RMSNorms.
        scale: of the dot products; default K ** -0.5.
        initial_state: keys [N, H, K, M], values [N, H, M, V] and clock [N, H] before the first token. Never changed.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: [N + 1], the bounds of packed sequences; B is 1 then.
        cu_seqlens_cpu: the same on the CPU; saves a GPU the wait for the bounds.
        checkpoint_level: 1 saves no slot scores for backward, which computes them again.

    Returns:
        o [B, T, H, V] in the type of q, and the final state or None.
    """
    if checkpoint_level not in (0, 1):
        raise ValueError(f"chunk_cyfa: checkpoint_level is {checkpoint_level}, wanted 0 or 1")
    return _whole(
        *(q, k, v, g, delta, beta, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale, initial_state),
        output_final_state,
        cu_seqlens if cu_seqlens is None or cu_seqlens_cpu is None else cu_seqlens_cpu,
        save_scores=checkpoint_level == 0,
    )


def fused_recurrent_cyfa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    delta: Tensor,
    beta: Tensor,
    readout: Tensor,
    q_norm_weight: Tensor,
    k_norm_weight: Tensor,
    q_norm_eps: float,
    k_norm_eps: float,
    scale: Optional[float] = None,
    initial_state: Optional[CyFAState] = None,
    output_final_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> tuple[Tensor, Optional[CyFAState]]:
    """The same for decoding, without gradients: a single token (T = 1) takes the operator's decode step. Arguments as for chunk_cyfa()."""
    weights = (q_norm_weight, k_norm_weight)
    if q.shape != k.shape or any(weight.shape != q.shape[-1:] for weight in weights):
        raise ValueError(
            f"fused_recurrent_cyfa: q has shape {[*q.shape]} and k {[*k.shape]}, q_norm_weight {[*q_norm_weight.shape]} and k_norm_weight "
            f"{[*k_norm_weight.shape]}; the Q/K RMSNorm wants q and k of one shape [B, T, H, K] and weights [K]"
        )
    inputs = (q, k, v, g, delta, beta, readout, *weights, *(initial_state or ()))
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        raise NotImplementedError(
            "fused_recurrent_cyfa is inference-only: call it under torch.no_grad(), or chunk_cyfa where gradients are wanted"
        )
    if q.dim() != 4 or q.shape[1] != 1 or cu_seqlens is not None or q.dtype == torch.float64:
        return _whole(
            *(q, k, v, g, delta, beta, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale, initial_state),
            output_final_state,
            cu_seqlens,
        )
    dtype = q.dtype
    q, k, v, norm = _normed(q, k, v, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps)
    if initial_state is None:
        state = ops.empty_state(q.shape[0], q.shape[2], q.shape[3], v.shape[3], readout.shape[-1] + 1, q.device)
    else:
        state = ops.CyclicFlowState(*(x.clone(memory_format=torch.contiguous_format) for x in _state(initial_state, q)))
    gates = (wide(g)[:, 0], wide(delta)[:, 0], wide(beta)[:, 0])
    o = ops.cyclic_flow_step(q[:, 0], k[:, 0], v[:, 0], *gates, ops.readout_table(wide(readout)), state, scale=scale, **norm)
    return o.unsqueeze(1).to(dtype), (state.k, state.v, state.clock) if output_final_state else None


def naive_recurrent_cyfa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    delta: Tensor,
    beta: Tensor,
    readout: Tensor,
    q_norm_weight: Tensor,
    k_norm_weight: Tensor,
    q_norm_eps: float,
    k_norm_eps: float,
    scale: Optional[float] = None,
    initial_state: Optional[CyFAState] = None,
    output_final_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> tuple[Tensor, Optional[CyFAState]]:
    """The definition, token by token in float64: backend="reference" of cyfa.ops.cyclic_flow. Arguments as for chunk_cyfa()."""
    return _whole(
        *(q, k, v, g, delta, beta, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale, initial_state),
        output_final_state,
        cu_seqlens,
        backend="reference",
    )


def _whole(
    q, k, v, g, delta, beta, readout, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps, scale, state, final, cu_seqlens, **options
) -> tuple[Tensor, Optional[CyFAState]]:
    dtype = q.dtype
    q, k, v, norm = _normed(q, k, v, q_norm_weight, k_norm_weight, q_norm_eps, k_norm_eps)
    o, after = ops.cyclic_flow(
        q,
        k,
        v,
        wide(g),
        wide(delta),
        wide(beta),
        wide(readout),
        initial_state=None if state is None else _state(state, q),
        cu_seqlens=cu_seqlens,
        scale=scale,
        final_state=final,
        **norm,
        **options,
    )
    return o.to(dtype), None if after is None else (after.k, after.v, after.clock)


def _normed(q, k, v, q_weight, k_weight, q_eps: float, k_eps: float) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """q, k and v, and the operator's options for the RMSNorms of q and k. It has one epsilon; with two, q and k are normalised here."""
    q, k, v, q_weight, k_weight = (wide(x) for x in (q, k, v, q_weight, k_weight))
    if q_eps == k_eps:
        return q, k, v, {"q_norm_weight": q_weight, "k_norm_weight": k_weight, "norm_eps": q_eps}
    apart = ((q, q_weight, q_eps), (k, k_weight, k_eps))
    q, k = (torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype) for x, weight, eps in apart)
    return q, k, v, {}


def _state(state: CyFAState, q: Tensor) -> ops.CyclicFlowState:
    """A state as the operator takes it: memory in the type it computes with, the clock in float64."""
    if len(state) != 3:
        raise ValueError(f"initial_state has {len(state)} tensors, wanted 3: keys [N, H, K, M], values [N, H, M, V] and clock [N, H]")
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values, clock = (x.to(q.device) for x in state)
    return ops.CyclicFlowState(keys.to(compute), values.to(compute), clock.double())

