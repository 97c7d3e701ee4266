"""What the tests of cyfa.hf share: a small model of each type, and the judge, cyfa.nn.CausalLM on whole sequences without a cache."""

import json
import pathlib

import torch
from cyfa import hf, nn
from transformers.utils import logging

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests/vectors"
VOCABULARY = 24
ROUNDING = 2e-5  # relative L2 norm between two float32 computations of the same thing
logging.disable_progress_bar()


def _blurry_window() -> dict:
    """The one type without stored weights: the parity config, made small."""
    config = json.loads((ROOT / "configs/parity/bla-rho2.json").read_text())
    return config | {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "num_heads": 2, "head_dim": 8, "num_slots": 8,
                     "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}  # fmt: skip


# One for each model type.
SMALL = {name: VECTORS / name for name in ("abc", "cyclic_flow", "delta_net", "gdn", "gla", "gsa", "kda", "linear_attn", "mamba2",
                                           "mamba3_mimo", "raven", "retnet", "swa", "transformer")}  # fmt: skip
SMALL["blurry_window"] = _blurry_window()


def judge(name: str) -> nn.CausalLM:
    model = nn.CausalLM(SMALL[name], seed=3) if name == "blurry_window" else nn.CausalLM.from_checkpoint(SMALL[name])
    return model.eval()


def make(name: str) -> hf.CyfaForCausalLM:
    """The same model behind transformers' interface. It ends no text, and takes no token of a prompt for padding."""
    if name == "blurry_window":
        model = hf.CyfaForCausalLM(hf.CyfaConfig(**SMALL[name])).eval()
        model.load_state_dict(judge(name).state_dict())
    else:
        model = hf.CyfaForCausalLM.from_pretrained(SMALL[name])
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


def ids_of(batch=2, length=11) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def rel(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


@torch.no_grad()
def next_logits(model: nn.CausalLM, ids: list[int]) -> torch.Tensor:
    """Logits [vocab_size] of the token after `ids`."""
    return model(torch.tensor([ids])).logits[0, -1]


def greedy(model: nn.CausalLM, ids: list[int], new: int) -> list[int]:
    """The most probable continuation token by token."""
    for _ in range(new):
        ids = [*ids, int(next_logits(model, ids).argmax())]
    return ids


def beam_search(model: nn.CausalLM, ids: list[int], new: int, beams: int) -> list[list[int]]:
    """The continuations that are left when each step keeps the most probable `beams`, best first."""
    kept = [(0.0, ids)]
    for _ in range(new):
        grown = []
        for score, text in kept:
            log_p = next_logits(model, text).log_softmax(0)
            grown += [(score + float(log_p[token]), [*text, token]) for token in range(len(log_p))]
        kept = sorted(grown, key=lambda pair: -pair[0])[:beams]
    return [text for _, text in kept]
