"""The layer of fla.layers: cyfa.nn.Mixer with flash-linear-attention's constructor, call and cache."""

import math
from typing import Any, Optional

import torch
from torch import Tensor

from cyfa.nn import Mixer


class CyclicFlowAttention(Mixer):
    """Cyclic Flow Attention as a layer: projections, short convolutions, gates, the operator, output gate and norm.

    Its state dict has the names and shapes of flash-linear-attention's layer; parameters are drawn as its models draw theirs. A layer in
    float16 computes in float32.

    Args:
        hidden_size: width D of the hidden states.
        expand_k, expand_v: widths of a head's keys and values, in multiples of head_dim.
        head_dim, num_heads: width and number of the heads.
        mode: "chunk" or "fused_recurrent". Both compute the same; the library chooses how.
        use_short_conv, conv_size, conv_bias: convolutions of q, k and v.
        num_slots: stored slots M of the memory, an even number.
        checkpoint_level: 1 saves no activations for backward, which computes them again.
        layer_idx: the layer's number in a cache.
        norm_eps: of all its norms.
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        head_dim: int = 256,
        num_heads: int = 4,
        mode: str = "chunk",
        use_short_conv: bool = True,
        conv_size: int = 4,
        conv_bias: bool = False,
        num_slots: int = 128,
        checkpoint_level: int = 0,
        layer_idx: Optional[int] = None,
        norm_eps: float = 1e-5,
        **kwargs: Any,
    ):
        for name, factor in (("expand_k", expand_k), ("expand_v", expand_v)):
            if not math.isclose(head_dim * factor, int(head_dim * factor), rel_tol=1e-5):
                raise ValueError(f"{name} is {factor} and head_dim {head_dim}; their product is the width of a head, wanted an integer")
        if mode not in ("chunk", "fused_recurrent"):
            raise ValueError(f"mode is {mode!r}, wanted 'chunk' or 'fused_recurrent'")
        if checkpoint_level not in (0, 1):
            raise ValueError(f"checkpoint_level is {checkpoint_level}, wanted 0 or 1")
        super().__init__(
            {
                "model_type": "cyclic_flow_attention",
                "num_hidden_layers": 1,
                "hidden_size": hidden_size,
                "expand_k": expand_k,
                "expand_v": expand_v,
                "head_dim": head_dim,
                "num_heads": num_heads,
                "use_short_conv": use_short_conv,
                "conv_size": conv_size,
                "conv_bias": conv_bias,
                "num_slots": num_slots,
                "norm_eps": norm_eps,
            }
        )
        self.mode = mode
        self.hidden_size = hidden_size
        self.expand_k = expand_k
        self.expand_v = expand_v
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.use_short_conv = use_short_conv
        self.conv_size = conv_size
        self.conv_bias = conv_bias
        self.num_slots = num_slots
        self.num_readout_slots = num_slots - 1
        self.checkpoint_level = checkpoint_level
        self.layer_idx = layer_idx
        self.head_k_dim = int(head_dim * expand_k)
        self.head_v_dim = int(head_dim * expand_v)
        self.key_dim = num_heads * self.head_k_dim
        self.value_dim = num_heads * self.head_v_dim
        for name in ("A_log", "dt_bias"):
            setattr(self.get_parameter(name), "_no_weight_decay", True)

    def forward(  # type: ignore[override]  # the signature is flash-linear-attention's
        self,
        hidden_states: Tensor,
        attention_mask: Optional[Tensor] = None,
        past_key_values: Optional[Any] = None,
        use_cache: Optional[bool] = False,
        output_attentions: Optional[bool] = False,
        **kwargs: Any,
    ) -> tuple[Tensor, None, Optional[Any]]:
        """Maps hidden_states [B, T, D] to [B, T, D].

        Args:
            attention_mask: [B, T] or longer, whose last T columns count: 0 marks padding, which neither writes nor moves the clock, and
                whose output is 0. A single token is always real.
            past_key_values: a cache of flash-linear-attention's kind (update(), len() and []), such as cyfa.compat.fla.Cache, with the
                states of the tokens before.
            use_cache: whether to store the states after the last token in past_key_values.
            output_attentions: there are none; the second result is always None.
            cu_seqlens: [N + 1], the bounds of packed sequences; B is 1 then, and attention_mask is not looked at.

        Returns:
            The output, None, and past_key_values.
        """
        bounds = kwargs.get("cu_seqlens")
        batch, tokens = hidden_states.shape[:2]
        before = self._read(past_key_values)
        x, places = hidden_states, None
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError(f"attention_mask has shape {[*attention_mask.shape]}, wanted [B, T], where 0 marks padding")
            if bounds is None and tokens > 1:
                mask = attention_mask[:, -tokens:] != 0
                places = mask.flatten().nonzero().squeeze(1)
                bounds = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
                x = x.flatten(0, 1)[places].unsqueeze(0)
        keep = bool(use_cache) and past_key_values is not None
        recompute = self.checkpoint_level == 1 and torch.is_grad_enabled() and before is None and not keep
        y = super().forward(x, state=before, cu_seqlens=bounds, return_state=keep, recompute=recompute)
        if keep:
            y, after = y
            self._write(past_key_values, after, tokens)
        if not torch.is_autocast_enabled(y.device.type):
            y = y.to(hidden_states.dtype)
        if places is not None:
            y = y.new_zeros(batch * tokens, y.shape[-1]).index_copy(0, places, y[0]).view(batch, tokens, -1)
        return y, None, past_key_values

    # A state is [keys, values, clock, and for each convolution its last inputs]. A cache has the convolutions' as [N, width, conv_size],
    # one token more than are needed, and Mixer as [N, conv_size - 1, width].

    def _read(self, cache: Optional[Any]) -> Optional[list[Tensor]]:
        if cache is None:
            return None
        if self.layer_idx is None:
            raise ValueError("CyclicFlowAttention: layer_idx is None, wanted the layer's number in past_key_values")
        if not hasattr(cache, "__getitem__"):
            raise ValueError(
                f"past_key_values is a {type(cache).__name__}, wanted a cache of flash-linear-attention's kind with a dictionary a layer, "
                "such as cyfa.compat.fla.Cache"
            )
        own = cache[self.layer_idx] if len(cache) > self.layer_idx else None
        if own is None or own["recurrent_state"] is None:
            return None
        keys, values, clock = own["recurrent_state"]
        inputs = own["conv_state"] if self.use_short_conv else ()
        return [keys.float(), values.float(), clock.double(), *(x[:, :, 1:].transpose(1, 2).float() for x in inputs)]

    def _write(self, cache: Any, state: list[Tensor], tokens: int) -> None:
        inputs = tuple(torch.nn.functional.pad(x.transpose(1, 2), (1, 0)) for x in state[3:])
        cache.update(recurrent_state=tuple(state[:3]), conv_state=inputs or None, layer_idx=self.layer_idx, offset=tokens)
