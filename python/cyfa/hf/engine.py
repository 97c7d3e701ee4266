"""The step engine that a model keeps for generate()."""

import contextlib
from typing import Any, Optional

import torch

from cyfa.engine import StepEngine
from cyfa.nn import compute_type


class KeptEngine:
    """Prepares a model's step engine when generate() first steps, and keeps it while the weights stay as they are.

    A weight has changed if it is another tensor or was written to since; both are looked at once in each generate(). Copies and pickles of
    a model begin without an engine.
    """

    def __init__(self):
        self.clear()
        self._depth = 0  # of generate() calls: an assistant may be the model itself
        self._looked = False  # whether this generate() has compared the weights

    def clear(self) -> None:
        """Lets the engine go; of() prepares another."""
        self._engine: Optional[StepEngine] = None
        self._seen: Optional[list[Any]] = None

    @contextlib.contextmanager
    def in_use(self):
        """Inside, of() gives an engine."""
        self._depth += 1
        self._looked = False
        try:
            yield
        finally:
            self._depth -= 1

    def of(self, model) -> Optional[StepEngine]:
        """The engine of the model as it is; None outside of generate(), under gradients, in training and for weights that an engine cannot
        read."""
        if self._depth == 0 or model.training or torch.is_grad_enabled():
            return None
        if not self._looked:
            self._looked = True
            self._look(model)
        return self._engine

    def _look(self, model) -> None:
        weights = model.table_parameters()
        compute = compute_type(weights[0])
        seen: list[Any] = [compute]
        seen += [(w.data_ptr(), None if w.is_inference() else w._version, w.dtype) for w in weights if type(w) is torch.nn.Parameter]
        if len(seen) <= len(weights):  # sharded or quantized
            self.clear()
        elif seen != self._seen:
            self.clear()
            self._engine, self._seen = StepEngine(model, compute=compute), seen

    def __getstate__(self) -> dict:
        return {}

    def __setstate__(self, state: dict) -> None:
        KeptEngine.__init__(self)
