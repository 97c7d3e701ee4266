"""Models as modules: Mixer, Block and CausalLM, one class each for every model type.

A module holds ordinary parameters under the checkpoint's names and hands them to C++ at each call, where the model is stated once. What a
model consists of comes from the library's description of its config (cyfa.nn.describe).
"""

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from cyfa import _library

Config = Union[str, "pathlib.Path", Mapping[str, Any]]
_ops = torch.ops.cyfa


def config_text(config: Config) -> str:
    """The config as the text that the library is called with.

    `config` is a mapping (the contents of config.json), the path of such a file or of a checkpoint's folder, or the name of a config that
    comes with the package, such as "cyfa-400m".
    """
    if isinstance(config, Mapping):
        return json.dumps(dict(config))
    path = pathlib.Path(config)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        provided = _library.shared_folder() / "configs" / f"{path.name}.json"
        if not provided.is_file():
            names = ", ".join(sorted(p.stem for p in provided.parent.glob("*.json")))
            raise ValueError(f"{config}: no such config; wanted a mapping, a file, a checkpoint's folder or one of {names}")
        path = provided
    return json.dumps(json.loads(path.read_text()))


@functools.lru_cache(maxsize=64)
def _described(text: str) -> dict:
    return json.loads(_ops.describe(text))


def describe(config: Config) -> dict:
    """What the library knows of a config: every key with its value or default, layers with their states, the table of parameters (name,
    shape, role, weight decay, initialisation), sizes and FLOPs."""
    return json.loads(_ops.describe(config_text(config)))


class _Holder(nn.Module):
    """One level of the dotted names of parameters."""


class _Row(NamedTuple):
    """Where a parameter is, and its row in the model's table."""

    holder: nn.Module
    name: str
    id: int


class Part(nn.Module):
    """A part of a model: parameters under their names in checkpoints, and calls of the library with them."""

    def __init__(self, text: str, ids: list[int], prefix: str, device=None, dtype=None):
        super().__init__()
        self.config_text = text
        self.rows: list[_Row] = []
        table = _described(text)["parameters"]
        for id in ids:
            *path, name = table[id]["name"].removeprefix(prefix).split(".")
            holder: nn.Module = self
            for level in path:
                if level not in holder._modules:
                    holder.add_module(level, _Holder())
                holder = holder.get_submodule(level)
            holder.register_parameter(name, nn.Parameter(torch.empty(table[id]["shape"], device=device, dtype=dtype)))
            self.rows.append(_Row(holder, name, id))

    def tensors(self) -> list[Tensor]:
        """The parameters in the table's order, as they are now: sharding and functional_call replace them. Those in float16, which the
        library does not compute in, are in float32."""
        return [wide(getattr(row.holder, row.name)) for row in self.rows]

    @torch.no_grad()
    def reset_parameters(self, generator: Optional[torch.Generator] = None) -> None:
        """Draws all parameters anew, as the model's origin initialises them."""
        for row in self.rows:
            initialise(getattr(row.holder, row.name), self.config_text, row.id, generator)

    def run(self, part: str, x: Tensor, *, layer=0, state=(), extra=None, noise=None, final_state=False, recompute=False) -> list[Tensor]:
        """Runs "embed", "block", "mixer" or the like with these parameters (python/bindings/parts.cc): the result, then states."""
        return _ops.part(
            x, self.tensors(), list(state), extra, self.config_text, part, layer, compute_type(x), noise, final_state, recompute
        )

    def extra_repr(self) -> str:
        return _described(self.config_text)["model_type"]


def initialise(parameter: Tensor, text: str, id: int, generator: Optional[torch.Generator] = None) -> None:
    """Draws one parameter, row `id` of the table of the model with this config, in place."""
    if parameter.is_meta:
        return
    seed = int(torch.randint(2**62, (), generator=generator))
    _ops.initialise_parameter(parameter, text, id, seed)


def wide(x: Tensor) -> Tensor:
    """float16 as float32; other types as they are."""
    return x.float() if x.dtype == torch.float16 else x


def compute_type(x: Tensor) -> Optional[torch.dtype]:
    """The type of matrix products on the device of x: autocast's, with float32 for float16, or None for that of the parameters."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    wanted = torch.get_autocast_dtype(kind)
    return torch.float32 if wanted == torch.float16 else wanted


class _Layered(Part):
    """What Mixer and Block share."""

    part: str

    def __init__(self, config: Config, layer: int = 0, *, device=None, dtype=None):
        text = config_text(config)
        model = _described(text)
        if not 0 <= layer < len(model["layers"]):
            raise ValueError(f"layer is {layer}, wanted 0 .. {len(model['layers']) - 1}")
        layout = model["layout"]
        first, count = model["layers"][layer]["parameters"]
        prefix = f"{layout['root']}.{layout['layers']}.{layer}."
        if self.part == "mixer":
            prefix += layout["mixer"] + "."
        ids = [id for id in range(first, first + count) if model["parameters"][id]["name"].startswith(prefix)]
        super().__init__(text, ids, prefix, device, dtype)
        self.layer = layer
        self.draws_noise = model["layers"][layer]["draws_noise"]
        self.state_specs = model["layers"][layer]["states"]
        self.reset_parameters()

    def initial_state(self, sequences: int, device=None) -> list[Tensor]:
        """The empty state of `sequences` sequences, one tensor [sequences, ...] for each of `state_specs`."""
        device = device if device is not None else self.tensors()[0].device
        return [torch.zeros([sequences, *s["shape"]], dtype=getattr(torch, s["dtype"]), device=device) for s in self.state_specs]

    def forward(
        self,
        x: Tensor,
        *,
        state: Optional[list[Tensor]] = None,
        cu_seqlens: Optional[Tensor] = None,
        return_state: bool = False,
        recompute: bool = False,
    ):
        """Maps x [B, T, D] to [B, T, D].

        Args:
            state: of the sequences before x, as initial_state() has it; never changed. Default: an empty memory.
            cu_seqlens: [N + 1] bounds of packed sequences; B is 1 then.
            return_state: also return the state after the last token.
            recompute: save no activations; backward computes them again. Without states.

        Returns:
            y [B, T, D], or (y, state).
        """
        noise = torch.randint(2**62, ()) if self.draws_noise and self.training else None
        y, *after = self.run(
            self.part,
            x,
            layer=self.layer,
            state=state or (),
            extra=cu_seqlens,
            noise=noise,
            final_state=return_state,
            recompute=recompute,
        )
        return (y, after) if return_state else y


class Mixer(_Layered):
    """The mixer of one layer: what moves information between tokens. x [B, T, D] to [B, T, D], without norm or residual."""

    part = "mixer"


class Block(_Layered):
    """One layer: x + mixer(norm(x)), then x + MLP(norm(x)) where the model has an MLP."""

    part = "block"


class Embedding(Part):
    """Token ids [B, T] to [B, T, D]."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.run("embed", ids)[0]


class LanguageModel(nn.Module):
    """The parts of a model and its passes: what CausalLM here and Hugging Face's class in cyfa.hf share."""

    def build(self, text: str, device=None, dtype=None) -> None:
        """Adds the model's parts under their names in checkpoints. Parameters are drawn from torch's generator."""
        model = _described(text)
        layout, table = model["layout"], model["parameters"]
        ids = {row["name"]: id for id, row in enumerate(table)}
        self.config_text = text
        self.layout = layout
        root = _Holder()
        self.add_module(layout["root"], root)
        self._part(root, layout["embeddings"], Embedding, f"{layout['root']}.{layout['embeddings']}.weight", ids, device, dtype)
        blocks = (Block(json.loads(text), i, device=device, dtype=dtype) for i in range(len(model["layers"])))
        root.add_module(layout["layers"], nn.ModuleList(blocks))
        self._part(root, layout["norm"], Part, f"{layout['root']}.{layout['norm']}.weight", ids, device, dtype)
        self.tied_head = f"{layout['head']}.weight" not in ids
        if not self.tied_head:
            self._part(self, layout["head"], Part, f"{layout['head']}.weight", ids, device, dtype)

    def _part(self, owner, name, kind, row, ids, device, dtype):
        part = kind(self.config_text, [ids[row]], row.removesuffix("weight"), device, dtype)
        part.reset_parameters()
        owner.add_module(name, part)

    @property
    def root(self) -> nn.Module:
        """The model without its head."""
        return getattr(self, self.layout["root"])

    @property
    def embeddings(self) -> Embedding:
        """Token ids [B, T] to [B, T, D]."""
        return getattr(self.root, self.layout["embeddings"])

    @property
    def blocks(self) -> Sequence[Block]:
        """The layers, each [B, T, D] to [B, T, D]."""
        return getattr(self.root, self.layout["layers"])

    def head_weights(self) -> list[Tensor]:
        """The final norm's weight and the head's."""
        norm: Part = getattr(self.root, self.layout["norm"])
        head: Part = self.embeddings if self.tied_head else getattr(self, self.layout["head"])
        return [*norm.tensors(), *head.tensors()]

    def table_parameters(self) -> list[Tensor]:
        """All parameters in the order of the library's table."""
        named = dict(self.named_parameters())
        return [named[row["name"]] for row in _described(self.config_text)["parameters"]]

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [B, T, D] to [B, T, vocab_size]."""
        compute = compute_type(hidden)
        return _ops.part(hidden, self.head_weights(), [], None, self.config_text, "head", 0, compute, None, False, False)[0]

    def loss_of(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of targets [B, T] given hidden [B, T, D], without storing all logits; targets of -100 are ignored."""
        compute = compute_type(hidden)
        return _ops.part(hidden, self.head_weights(), [], targets, self.config_text, "loss", 0, compute, None, False, False)[0]


class ModelOutput(NamedTuple):
    """What CausalLM returns."""

    logits: Optional[Tensor]
    """[B, T, vocab_size]; None if targets were given."""
    loss: Optional[Tensor]
    """Mean cross-entropy, if targets were given."""
    state: Optional[list[list[Tensor]]]
    """For each layer the state after the last token, if it was asked for."""


class CausalLM(LanguageModel):
    """A language model of any type. Its state_dict has the names of a Hugging Face checkpoint.

    Args:
        config: a mapping, a config.json, a checkpoint's folder or the name of a config that comes with the package. Of a folder only the
            config is read; from_checkpoint() reads the weights too.
        seed: draws the parameters as `cyfa init --seed` does; default: from torch's generator.
    """

    def __init__(self, config: Config, *, seed: Optional[int] = None, device=None, dtype=None):
        super().__init__()
        self.build(config_text(config), device, dtype)
        if seed is not None:
            self.initialise(seed)

    @property
    def config(self) -> dict:
        """The contents of config.json."""
        return json.loads(self.config_text)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draws all parameters as `cyfa init --seed` does: the same seed gives the same model on every device and in every type."""
        parameters = self.table_parameters()
        drawn = _ops.initial_parameters(self.config_text, seed, torch.float32, torch.device("cpu"))
        for parameter, values in zip(parameters, drawn):
            parameter.copy_(values)

    @classmethod
    def from_checkpoint(cls, folder: Union[str, "pathlib.Path"], *, device=None, dtype: Optional[torch.dtype] = None) -> "CausalLM":
        """The model of a checkpoint's folder: config.json with model.safetensors, or with shards and their index."""
        from cyfa import _checkpoint

        model = cls(folder, device="meta")
        _checkpoint.load(model, pathlib.Path(folder), device=device, dtype=dtype)
        return model

    def reset_parameters(self) -> None:
        """Draws all parameters from torch's generator, say after to_empty() of a model made on the meta device."""
        for module in self.modules():
            if isinstance(module, Part):
                module.reset_parameters()

    def initial_state(self, sequences: int) -> list[list[Tensor]]:
        """The empty state of `sequences` sequences, layer by layer."""
        return [block.initial_state(sequences) for block in self.blocks]

    def forward(
        self,
        ids: Tensor,
        targets: Optional[Tensor] = None,
        *,
        state: Optional[list[list[Tensor]]] = None,
        cu_seqlens: Optional[Tensor] = None,
        return_state: bool = False,
        recompute: bool = False,
    ) -> ModelOutput:
        """Logits of the token after each of ids [B, T], or with targets [B, T] the mean cross-entropy.

        Args:
            state: of the tokens before ids, layer by layer; never changed.
            cu_seqlens: [N + 1] bounds of packed sequences; B is 1 then.
            return_state: also return the state after the last token.
            recompute: activation checkpointing: backward computes each block again.
        """
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"state has {len(state)} layers, wanted {len(self.blocks)}, as initial_state() returns them")
        x = self.embeddings(ids)
        after = []
        for i, block in enumerate(self.blocks):
            before = state[i] if state is not None else None
            x = block(x, state=before, cu_seqlens=cu_seqlens, return_state=return_state, recompute=recompute)
            if return_state:
                x, own = x
                after.append(own)
        states = after if return_state else None
        if targets is not None:
            return ModelOutput(None, self.loss_of(x, targets), states)
        return ModelOutput(self.logits(x), None, states)


def optimizer_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer: those that the table decays, then norms, biases and rates of gates, without decay."""
    decays: dict[Tensor, bool] = {}
    for module in model.modules():
        if isinstance(module, Part):
            table = _described(module.config_text)["parameters"]
            decays.update((getattr(row.holder, row.name), table[row.id]["weight_decay"]) for row in module.rows)
    groups: tuple[list[Tensor], list[Tensor]] = ([], [])
    for parameter in model.parameters():
        groups[bool(decays.get(parameter, parameter.dim() > 1))].append(parameter)
    return [{"params": groups[1], "weight_decay": weight_decay}, {"params": groups[0], "weight_decay": 0.0}]


def model_types() -> list[dict]:
    """All model types: model_type and architecture of config.json, and a line about each."""
    return json.loads(_ops.model_types())


__all__ = ["Block", "CausalLM", "Mixer", "ModelOutput", "describe", "model_types", "optimizer_groups"]
