"""Models for Hugging Face transformers (5.17 or later, below 6): one config, one model and one cache class for every model type.

    import cyfa.hf                                                     # registers the model types that transformers has not itself
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder)
    model = cyfa.hf.CyfaForCausalLM.from_pretrained(folder)            # every type: llama, mistral and mamba2 too

    cyfa.hf.CyfaTrainer             transformers' Trainer, with weight decay as the models' tables say
    cyfa.hf.CyfaTokenizer           of folders with tokenizer.model; AutoTokenizer takes it for them (needs the package sentencepiece)
    cyfa.hf.byte_tokenizer()        the program's tokenizer "bytes"

In an environment where the package is installed the Auto classes find these types without an import (cyfa_autoload.py), so that
`lm_eval --model hf` takes their folders.
"""

import importlib.util

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cyfa import nn
from cyfa.hf.cache import CyfaCache
from cyfa.hf.config import CyfaConfig
from cyfa.hf.model import CyfaForCausalLM
from cyfa.hf.tokenizer import byte_tokenizer

if importlib.util.find_spec("sentencepiece"):
    from cyfa.hf.tokenizer_model import CyfaTokenizer
else:
    CyfaTokenizer = None  # type: ignore[assignment, misc]

__all__ = ["CyfaCache", "CyfaConfig", "CyfaForCausalLM", "CyfaTokenizer", "CyfaTrainer", "byte_tokenizer"]


def _register(model_type: str, config, model) -> None:
    AutoConfig.register(model_type, config, exist_ok=True)
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    if CyfaTokenizer is not None:
        AutoTokenizer.register(config, tokenizer_class=CyfaTokenizer, exist_ok=True)


def _register_types() -> None:
    """A config and a model class for each type that transformers does not have, under the names of its architecture."""
    _register(CyfaConfig.model_type, CyfaConfig, CyfaForCausalLM)
    for kind in nn.model_types():
        if kind["model_type"] in CONFIG_MAPPING._mapping:  # transformers' own
            continue
        name = kind["architecture"].removesuffix("ForCausalLM") + "Config"
        config = type(name, (CyfaConfig,), {"model_type": kind["model_type"], "__module__": __name__, "__doc__": kind["about"]})
        own = {"config_class": config, "__module__": __name__, "__doc__": kind["about"]}
        model = type(kind["architecture"], (CyfaForCausalLM,), own)
        _register(kind["model_type"], config, model)
        for made in (config, model):
            globals()[made.__name__] = made
            __all__.append(made.__name__)


def __getattr__(name: str):
    if name == "CyfaTrainer":  # needs the package accelerate
        from cyfa.hf.trainer import CyfaTrainer

        return CyfaTrainer
    raise AttributeError(f"module {__name__} has no attribute {name}")


_register_types()
