"""The cache that layers of flash-linear-attention keep their states in, without its dependence on triton and transformers."""

from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import torch
from torch import Tensor

State = dict[str, Any]
_NAMES = ("recurrent_state", "attn_state", "conv_state", "ffn_state")


class Cache:
    """The states of a model's layers, a dictionary for each: recurrent_state, attn_state, conv_state and ffn_state.

    CyclicFlowAttention reads and writes every cache with update(), len() and [], flash-linear-attention's own among them.
    """

    def __init__(self, seen_tokens: int = 0):
        self.states: list[State] = []
        self._before = seen_tokens
        self._tokens: list[int] = []  # that each layer has seen

    def update(
        self,
        recurrent_state: Any = None,
        attn_state: Any = None,
        conv_state: Any = None,
        ffn_state: Any = None,
        layer_idx: int = 0,
        offset: Optional[int] = 1,
        cache_kwargs: Optional[dict[str, Any]] = None,
    ) -> State:
        """Takes the states of layer `layer_idx` after `offset` more tokens; one that is None stays as it is. Returns the layer's states."""
        if attn_state is not None:
            raise ValueError("Cache.update: attn_state belongs to softmax attention, which this cache does not serve; keep it in another")
        while len(self.states) <= layer_idx:
            self.states.append(dict.fromkeys(_NAMES))
            self._tokens.append(self._before)
        given = {"recurrent_state": recurrent_state, "conv_state": conv_state, "ffn_state": ffn_state}
        self.states[layer_idx].update({name: state for name, state in given.items() if state is not None})
        self._tokens[layer_idx] += 1 if offset is None else offset
        return self.states[layer_idx]

    def get_seq_length(self, layer_idx: Optional[int] = 0) -> int:
        """How many tokens a layer has seen."""
        layer = layer_idx or 0
        return self._tokens[layer] if layer < len(self._tokens) else 0

    def get_max_length(self, layer_idx: Optional[int] = 0) -> int:
        """-1: there is no limit."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Copies of these sequences, in this order, become the batch."""
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """The same as reorder_cache()."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence becomes `repeats` copies of itself."""
        self._each(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, max_length: int) -> None:
        """Refused: a recurrent state cannot go back."""
        raise NotImplementedError(
            "Cache.crop: a recurrent state cannot go back to an earlier token; copy.deepcopy() the cache before tokens that may be taken "
            "back"
        )

    def reset(self) -> None:
        """Forgets everything."""
        self.__init__()  # type: ignore[misc]

    def to_legacy_cache(self) -> tuple[State, ...]:
        """The layers' states as a tuple."""
        return tuple(self.states)

    @classmethod
    def from_legacy_cache(cls, past_key_values: "Optional[Cache | Iterable[State]]" = None, seen_tokens: int = 0) -> "Cache":
        """A cache with the layers' states that to_legacy_cache() gave; a cache is returned as it is."""
        if isinstance(past_key_values, cls):
            return past_key_values
        cache = cls()
        for layer, state in enumerate(past_key_values or ()):
            cache.update(**(state or {}), layer_idx=layer, offset=seen_tokens)
        return cache

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, layer_idx: int) -> State:
        return self.states[layer_idx]

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        def changed(state):
            if isinstance(state, Tensor):
                return change(state)
            return type(state)(changed(x) for x in state) if isinstance(state, (tuple, list)) else state

        self.states = [{name: changed(state) for name, state in layer.items()} for layer in self.states]
