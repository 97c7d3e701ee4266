"""Cyclic Flow Attention with the signatures of flash-linear-attention 0.6, on this library's operator, layer and models.

    from cyfa.compat.fla import chunk_cyfa, fused_recurrent_cyfa          # of fla.ops.cyfa
    from cyfa.compat.fla import CyclicFlowAttention                       # of fla.layers
    from cyfa.compat.fla import Cache                                     # of fla.models.utils
    from cyfa.compat.fla import CyclicFlowAttentionForCausalLM            # of fla.models; imports transformers

What differs, all of it additions:

    device     tensors on a CPU are taken too
    float16    computed in float32; results are float16. Where the GPU's speed matters, use bfloat16
    clock      final states hold it in float64, so that steps do not drift from a forward in long sequences; float32 is accepted
    states     are never changed in place
"""

from typing import Any

from cyfa.compat.fla.cache import Cache
from cyfa.compat.fla.layer import CyclicFlowAttention
from cyfa.compat.fla.ops import chunk_cyfa, fused_recurrent_cyfa, naive_recurrent_cyfa

__all__ = ["Cache", "CyclicFlowAttention", "chunk_cyfa", "fused_recurrent_cyfa", "naive_recurrent_cyfa"]


def __getattr__(name: str) -> Any:
    if name in ("CyclicFlowAttentionConfig", "CyclicFlowAttentionForCausalLM"):
        import cyfa.hf

        return getattr(cyfa.hf, name)
    if name in ("CyclicFlowAttentionModel", "CyclicFlowAttentionPreTrainedModel"):
        raise ImportError(
            f"cyfa.compat.fla has no {name}, a model without a head; take CyclicFlowAttentionForCausalLM, whose "
            "model(ids, output_hidden_states=True).hidden_states[-1] are the hidden states"
        )
    raise AttributeError(f"module {__name__} has no attribute {name}")
