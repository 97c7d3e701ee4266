"""The model class: the parts of cyfa.nn behind the interface of transformers."""

import json
import pathlib
from typing import Optional, Union

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from cyfa import nn
from cyfa.hf.cache import CyfaCache, States
from cyfa.hf.config import CyfaConfig
from cyfa.hf.engine import KeptEngine

# The file beside a checkpoint's weights that leads AutoModelForCausalLM(trust_remote_code=True) to the installed package.
_POINTER = "modeling_cyfa.py"
_POINTER_TEXT = "# Loads the model through the package cyfa: pip install cyfa\nfrom cyfa.hf import CyfaConfig, CyfaForCausalLM\n"
_AUTO_MAP = {"AutoConfig": "modeling_cyfa.CyfaConfig", "AutoModelForCausalLM": "modeling_cyfa.CyfaForCausalLM"}


class CyfaForCausalLM(nn.LanguageModel, PreTrainedModel, GenerationMixin):
    """A causal language model of any type that the library knows.

        model = CyfaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    With dtype=torch.bfloat16 the matrices are stored in bfloat16; gates, norms and readouts stay in float32.

    generate() decodes through a step engine (cyfa.engine), prepared at its first step and kept until the weights change. Module hooks do
    not see these steps.
    """

    config: CyfaConfig
    config_class = CyfaConfig
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    _is_stateful = False
    _no_split_modules = ["Block"]
    _skip_keys_device_placement = ["past_key_values"]

    def __init__(self, config: CyfaConfig):
        super().__init__(config)
        self.build(config.text())
        self.base_model_prefix = self.layout["root"]
        table = config.describe()["parameters"]
        self._keep_in_fp32_modules_strict = {_pattern(row["name"]) for row in table if row["role"] != "matrix"}
        if self.tied_head:
            self._keys_to_ignore_on_load_unexpected = [rf"^{self.layout['head']}\.weight$"]
        self._kept_engine = KeptEngine()
        for parameter in self.parameters():  # drawn by build(), but on the meta device
            parameter._is_hf_initialized = not parameter.is_meta  # type: ignore[attr-defined]
        self.post_init()  # type: ignore[operator]

    @torch.no_grad()
    def _init_weights(self, module):
        """Draws the parameters that a checkpoint lacks, each by its row of the table."""
        if not module._parameters:
            return
        for part in self.modules():
            for row in part.rows if isinstance(part, nn.Part) else ():
                parameter = getattr(row.holder, row.name)
                if row.holder is module and not getattr(parameter, "_is_hf_initialized", False):
                    nn.initialise(parameter, part.config_text, row.id)

    def get_input_embeddings(self):
        return self.embeddings

    def get_output_embeddings(self):
        """The head, or the embedding if it is tied to it."""
        return self.embeddings if self.tied_head else getattr(self, self.layout["head"])

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True):
        """Returns the embedding if its size stays; another size raises ValueError."""
        if new_num_tokens not in (None, self.config.vocab_size) or pad_to_multiple_of is not None:
            raise ValueError(
                f"the vocabulary of a built model cannot be resized from {self.config.vocab_size} to {new_num_tokens} tokens; make a model "
                "with the vocab_size wanted and copy the weights"
            )
        return self.embeddings

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        past_key_values: Optional[CyfaCache] = None,
        labels: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        logits_to_keep: Union[int, Tensor] = 0,
        output_hidden_states: Optional[bool] = None,
        return_dict: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        **kwargs,
    ):
        """Logits of the token after each of input_ids [B, T].

        Args:
            attention_mask: [B, T], or [B, all tokens so far] of which the last T columns count. Positions of 0 are cut out: they change
                neither states nor logits of others. A call of one token reads no mask.
            inputs_embeds: [B, T, D] instead of input_ids.
            past_key_values: of the tokens before; it is advanced in place.
            labels: [B, T], shifted inside; adds the loss. -100 is ignored.
            use_cache: return past_key_values. Default: if there is one, or config.use_cache outside of training.
            logits_to_keep: only the last n positions, or these positions.
            cu_seqlens: [N + 1] bounds of packed sequences; B is 1 then.

        hidden_states are the input of each block and the output of the last one, before the final norm.
        """
        if past_key_values is not None and not isinstance(past_key_values, CyfaCache):
            raise ValueError(f"past_key_values is a {type(past_key_values).__name__}, wanted a cyfa.hf.CyfaCache or None")
        hidden_wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)

        if past_key_values is not None and past_key_values.can_step and not (hidden_wanted or as_tuple) and labels is None:
            engine = self._kept_engine.of(self) if input_ids is not None and input_ids.shape[1] == 1 else None
            if engine is not None and input_ids is not None:
                return CausalLMOutputWithPast(logits=past_key_values.step(engine, input_ids), past_key_values=past_key_values)

        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if use_cache is None:
            use_cache = past_key_values is not None or (self.config.use_cache and not self.training)
        cache = past_key_values if past_key_values is not None else CyfaCache()
        keep = use_cache and not recompute
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("wanted either input_ids or inputs_embeds")
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        mask = _mask_of(attention_mask, x.shape[1])
        before = cache.states

        def run(x, mask):
            return self._run(x, mask, before, cu_seqlens, keep, hidden_wanted, recompute)

        hidden, after = run(x, mask)
        if keep:
            cache.advance(after, x.shape[1], lambda n: run(x[:, :n], None if mask is None else mask[:, :n])[1])

        kept = slice(None) if labels is not None else slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self._logits(hidden[-1][:, kept], None if mask is None else mask[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)  # type: ignore[operator]
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=cache if keep else None,
            hidden_states=tuple(hidden) if hidden_wanted else None,
        )
        return output.to_tuple() if as_tuple else output

    def _run(self, x, mask, before, cu_seqlens, keep, all_hidden, recompute) -> tuple[list[Tensor], States]:
        """The blocks. Returns the input of each and the output of the last (or that alone), and the states after."""
        if mask is None:
            return self._run_packed(x, before, cu_seqlens, keep, all_hidden, recompute)
        if cu_seqlens is not None:
            raise ValueError("attention_mask and cu_seqlens exclude each other; leave padding out of packed sequences")
        if x.device.type != "cpu":  # all real tokens as one packed row
            real = mask.flatten().nonzero().squeeze(1)
            bounds = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
            hidden, after = self._run_packed(x.flatten(0, 1)[real].unsqueeze(0), before, bounds, keep, all_hidden, recompute)
            return [_spread(h[0], real, mask.shape) for h in hidden], after
        rows = []  # one by one: products of other shapes differ in the last bit, and each row is to equal the row alone
        for n in range(len(mask)):
            own = [[s[n : n + 1] for s in layer] for layer in before] if before is not None else None
            real = mask[n].nonzero().squeeze(1)
            if len(real) == 0:
                empty = own if own is not None else [block.initial_state(1) for block in self.blocks]
                rows.append(([x[n : n + 1]] * (len(self.blocks) + 1 if all_hidden else 1), empty))
                continue
            hidden, after = self._run_packed(x[n : n + 1, real], own, None, keep, all_hidden, recompute)
            rows.append(([_spread(h[0], real, (1, mask.shape[1])) for h in hidden], after))
        hidden = [torch.cat(each) for each in zip(*(row[0] for row in rows))]
        after = [[_concatenate(s) for s in zip(*layers)] for layers in zip(*(row[1] for row in rows))]
        return hidden, after

    def _run_packed(self, x, before, cu_seqlens, keep, all_hidden, recompute) -> tuple[list[Tensor], States]:
        hidden, after = [x], []
        for i, block in enumerate(self.blocks):
            own = before[i] if before is not None else None
            x = block(x, state=own, cu_seqlens=cu_seqlens, return_state=keep, recompute=recompute)
            if keep:
                x, states = x
                after.append(states)
            hidden.append(x)
        return hidden if all_hidden else [x], after

    def _logits(self, y, mask) -> Tensor:
        """Logits of y [B, T, D]; zeros where there is padding. As in _run(), a padded row on a CPU equals the row alone."""
        if mask is None or y.device.type != "cpu":
            return self.logits(y)
        rows = []
        for row, real in zip(y.split(1), mask):
            places = real.nonzero().squeeze(1)
            rows.append(_spread(self.logits(row[:, places])[0], places, (1, len(real))))
        return torch.cat(rows)

    # Generation.

    @torch.no_grad()
    def generate(self, *args, **kwargs):
        """transformers' generate(); steps of one token go through a step engine."""
        with self._kept_engine.in_use():
            return super().generate(*args, **kwargs)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            cache = model_kwargs["past_key_values"] = CyfaCache()
            if generation_config.is_assistant:
                cache.activate_past_recording()

    def train(self, mode: bool = True):
        if mode:
            self._kept_engine.clear()
        return super().train(mode)

    # Files.

    def save_pretrained(self, save_directory, is_main_process: bool = True, **kwargs):
        """Writes a folder that transformers, this package and the program `cyfa` read."""
        self.config.auto_map = _AUTO_MAP
        if is_main_process:
            folder = pathlib.Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _POINTER).write_text(_POINTER_TEXT)
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoModel"):
        """Does nothing: the class is installed with its package, and no checkpoint needs a copy of its source."""


def _pattern(name: str) -> str:
    """A parameter's name with * for the number of its layer."""
    return ".".join("*" if level.isdigit() else level for level in name.split("."))


def _mask_of(attention_mask: Optional[Tensor], tokens: int) -> Optional[Tensor]:
    """The mask [B, tokens] of a call, or None if there is no padding."""
    if attention_mask is None or tokens == 1:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask has {attention_mask.dim()} dimensions, wanted [B, T]")
    mask = attention_mask[:, -tokens:] != 0
    return None if bool(mask.all()) else mask


def _spread(values: Tensor, places: Tensor, shape) -> Tensor:
    """values [n, D] at `places` of zeros [*shape, D]."""
    flat = values.new_zeros(shape[0] * shape[1], values.shape[-1])
    return flat.index_copy(0, places, values).view(*shape, -1)


def _concatenate(rows: tuple[Tensor, ...]) -> Tensor:
    """State tensors of several sequences as one batch. Those that grow with the sequence are zero-padded to the longest."""
    if any(row.shape != rows[0].shape for row in rows):
        longest = max(row.shape[1] for row in rows)
        padding = [0, 0] * (rows[0].dim() - 2)
        rows = tuple(torch.nn.functional.pad(row, [*padding, 0, longest - row.shape[1]]) for row in rows)
    return torch.cat(rows)
