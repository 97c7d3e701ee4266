"""The cache class: the states of a batch of sequences, for every mixer."""

from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor
from transformers.cache_utils import Cache

States = list[list[Tensor]]


class _Call(NamedTuple):
    """A call of the model that crop() can take back."""

    tokens: int
    before: Optional[States]
    replay: Callable[[int], States]  # the states after the first n of its tokens


class CyfaCache(Cache):
    """What a model keeps of the tokens before: its states, layer by layer, and how many tokens they have seen.

    `model(..., use_cache=True)` returns one as past_key_values and goes on from one that it is given. While generate() decodes, the states
    are inside a step engine; `states` then reads copies of them.
    """

    is_compileable = False
    is_croppable = True
    is_initialized = True

    def __init__(self):
        super().__init__(layers=[])
        self.tokens = 0
        self.recording = False
        self._states: Optional[States] = None
        self._counts: list[int] = []  # state tensors of each layer
        self._engine = self._decoding = None
        self._calls: list[_Call] = []

    @property
    def states(self) -> Optional[States]:
        """For each layer the list of its state tensors [N, ...], as cyfa.nn.Block takes them; None before the first token."""
        if self._decoding is None:
            return self._states
        flat = iter(self._decoding.states())
        return [[next(flat) for _ in range(count)] for count in self._counts]

    def advance(self, states: States, tokens: int, replay: Callable[[int], States]) -> None:
        """Takes the states after a call of `tokens` tokens. `replay(n)` computes those after the first n of them."""
        if self.recording:
            self._calls.append(_Call(tokens, self._states, replay))
        self._set(states)
        self.tokens += tokens

    def step(self, engine, ids: Tensor) -> Tensor:
        """Decodes one token of each sequence, ids [N, 1], to logits [N, 1, vocab_size]. On a GPU the next step may overwrite them."""
        if self._engine is not engine:
            states = self.states or []
            self._counts = [len(layer) for layer in states]
            self._decoding = engine.begin(ids.shape[0], [x for layer in states for x in layer])
            self._engine, self._states = engine, None
        self.tokens += 1
        return self._decoding.step(ids.reshape(-1)).unsqueeze(1)

    @property
    def can_step(self) -> bool:
        """Whether step() may take the next token: there is a state, and no call has to be taken back."""
        return self.tokens > 0 and not self.recording

    def _set(self, states: Optional[States]) -> None:
        self._states, self._engine, self._decoding = states, None, None

    # What generate() asks of a cache.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens

    def get_max_length(self, layer_idx: Optional[int] = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.tokens + query_length, 0

    def has_previous_state(self, layer_idx: Optional[int] = None, state_idx: Optional[int] = None) -> bool:
        return self.tokens > 0

    @property
    def batch_size(self) -> int:
        if self._decoding is not None:
            return len(self._decoding)
        return next((x.shape[0] for layer in self._states or () for x in layer), -1)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Copies of these sequences, in this order, become the batch."""
        if self._decoding is not None:
            order = beam_idx.tolist()
            if order != list(range(len(self._decoding))):
                self._decoding.select(order)
        elif self._states is not None:
            self._states = [[x.index_select(0, beam_idx.to(x.device)) for x in layer] for layer in self._states]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forgets everything."""
        self._set(None)
        self.tokens = 0
        self._calls.clear()

    def activate_past_recording(self) -> None:
        """Makes the calls from now on such that crop() can take them back."""
        self._set(self.states)
        self.recording = True

    def is_recording_past(self, layer_idx: int = 0) -> bool:
        return self.recording

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last -tokens_to_remove tokens back, of those that came since recording began or since the last crop()."""
        left = -tokens_to_remove
        if left < 0 or left > sum(call.tokens for call in self._calls):
            raise ValueError(
                f"crop({tokens_to_remove}): wanted 0 or minus a number of tokens that came after activate_past_recording() and the last "
                "crop(); a recurrent state cannot go further back"
            )
        self.tokens -= left
        while left > 0:
            call = self._calls.pop()
            self._set(call.before if left >= call.tokens else call.replay(call.tokens - left))
            left -= min(left, call.tokens)
        self._calls.clear()

    def __len__(self) -> int:
        return len(self._counts) if self._decoding is not None else len(self._states or ())

    def __repr__(self) -> str:
        return f"CyfaCache(layers={len(self)}, sequences={self.batch_size}, tokens={self.tokens})"

    def __getstate__(self) -> dict:
        """For copies and pickles: the states, without an engine and without what crop() could take back."""
        return self.__dict__ | {"_states": self.states, "_engine": None, "_decoding": None, "_calls": []}
