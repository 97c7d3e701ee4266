"""The C++ engines from Python: a training pass and decode steps with prepared weights and fused kernels."""

from typing import Optional

import torch
from torch import Tensor

from cyfa.nn import LanguageModel, wide

_ops = torch.ops.cyfa


def _type_number(dtype: Optional[torch.dtype]) -> Optional[int]:
    """The dtype as classes of torch take it."""
    if dtype is not None and dtype not in _NUMBERS:
        raise ValueError(f"compute is {dtype}, wanted {', '.join(map(str, _NUMBERS))} or None")
    return None if dtype is None else _NUMBERS[dtype]


_NUMBERS = {torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # c10::ScalarType


class TrainEngine:
    """Losses of a model by the engine that the C++ trainer uses.

        engine = cyfa.train_engine(model, compute=torch.bfloat16)
        for inputs, targets in batches:
            optimizer.zero_grad()
            engine.begin_step()
            loss = engine.loss(inputs, targets)
            loss.backward()
            optimizer.step()

    The model's parameters stay ordinary nn.Parameters: backward fills their `grad`, in float32. Where the engine fuses weights, their
    `grad` are views of one array, which begin_step() sets to zero; they remain the same tensors from step to step.
    """

    def __init__(self, model: LanguageModel, compute: Optional[torch.dtype], engine: str, recompute: bool):
        if any(p.dtype == torch.float16 for p in model.parameters()):
            raise ValueError("train_engine: the model has parameters in float16, wanted float32 or bfloat16; call model.float() before")
        self.model = model
        self._draws_noise = any(block.draws_noise for block in model.blocks)
        self._engine = torch.classes.cyfa.TrainEngine(
            model.config_text, model.table_parameters(), _type_number(compute), engine, recompute
        )
        self._sums: list[tuple[Tensor, Tensor]] = []  # parameters and the gradients that the engine adds to

    @property
    def name(self) -> str:
        """"sm90" or "portable"."""
        return _ops.training_name(self._engine)

    def notes(self) -> list[str]:
        """What the engine runs as the plain model does, and why."""
        return _ops.training_notes(self._engine)

    def begin_step(self) -> None:
        """Reads the parameters' current values, which the losses use until the next call. Call it after each change of the parameters, and
        after optimizer.zero_grad()."""
        noise = int(torch.randint(2**62, ())) if self._draws_noise and self.model.training else None
        _ops.training_begin_step(self._engine, noise)
        self._sums = [] if self.name == "portable" else [(p, p.grad) for p in self.model.parameters() if p.grad is not None]

    def loss(self, inputs: Tensor, targets: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Mean cross-entropy of targets [B, T] given inputs [B, T]; targets of -100 are ignored. With cu_seqlens, the rows are concatenated
        to packed sequences."""
        if any(p.grad is not grad for p, grad in self._sums):
            raise ValueError("loss: gradients were replaced or set to None after begin_step(); call optimizer.zero_grad() before it")
        return _ops.training_loss(self._engine, inputs, targets, cu_seqlens)


def train_engine(
    model: LanguageModel, *, compute: Optional[torch.dtype] = None, engine: str = "auto", recompute: bool = False
) -> TrainEngine:
    """Prepares a model for training.

    Args:
        model: a cyfa.nn.CausalLM or a model of cyfa.hf. Its parameters must stay the same tensors while the engine is used.
        compute: the type of matrix products, such as torch.bfloat16; default: that of the parameters.
        engine: "auto" takes the fastest that accepts the model: "sm90" for float32 parameters on a Hopper GPU with compute=torch.bfloat16,
            else "portable". An engine that is named and refuses raises ValueError with its reason.
        recompute: activation checkpointing.
    """
    return TrainEngine(model, compute, engine, recompute)


class Decoding:
    """A batch of sequences that are decoded token by token."""

    def __init__(self, inner):
        self._inner = inner

    def step(self, ids: Tensor) -> Tensor:
        """One token of each sequence, ids [B], to the logits [B, vocab_size] of the next, in float32. On a GPU the next step may overwrite
        them."""
        return _ops.decoding_step(self._inner, ids)

    def select(self, sequences: list[int]) -> None:
        """Copies of these sequences, in this order, become the batch."""
        _ops.decoding_select(self._inner, sequences)

    def states(self) -> list[Tensor]:
        """Copies of all state tensors, layer by layer."""
        return _ops.decoding_states(self._inner)

    def __len__(self) -> int:
        return _ops.decoding_sequences(self._inner)


class StepEngine:
    """A model prepared for decoding: fused weights and kernels, and a CUDA graph of the step where the mixers allow it. It reads the
    weights once; prepare another after they change."""

    def __init__(self, model: LanguageModel, *, compute: Optional[torch.dtype] = None, engine: str = "auto", record: bool = True):
        self._engine = torch.classes.cyfa.StepEngine(
            model.config_text, [wide(p.detach()) for p in model.table_parameters()], _type_number(compute), engine, record
        )

    @property
    def name(self) -> str:
        """"sm90" or "portable", with "+graph" where steps are replayed from a CUDA graph."""
        return _ops.steps_name(self._engine)

    def path(self, sequences: int) -> str:
        """How a step of this many sequences runs, in words."""
        return _ops.steps_path(self._engine, sequences)

    def notes(self) -> list[str]:
        """Where the engine runs as the plain model does, and why."""
        return _ops.steps_notes(self._engine)

    def begin(self, sequences: int, states: Optional[list[Tensor]] = None) -> Decoding:
        """Starts decoding from states, layer by layer as a forward returns them, which are copied; default: from empty ones."""
        return Decoding(_ops.steps_begin(self._engine, sequences, list(states or [])))
