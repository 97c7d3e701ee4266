"""Lets transformers' Auto classes find the model types of cyfa.hf in programs that do not import it, such as lm_eval.

pyproject.toml names install() as an entry point of the group torch.backends, so `import torch` calls it in each process of an environment
that has cyfa (TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches these calls off). It only arranges to be told when transformers' table of configs is
imported, and then enters a stand-in for each model type. The first use of a stand-in imports cyfa.hf; a process that reads no model of cyfa
never loads the library. This module is not part of the package cyfa, whose import would load it.
"""

import importlib.abc
import importlib.util
import sys

_TABLE = "transformers.models.auto.configuration_auto"

# The types that cyfa.hf registers, which is every type but those of transformers.
MODEL_TYPES = (
    "cyfa",
    "abc",
    "blurry_window_attention",
    "cyclic_flow_attention",
    "delta_net",
    "gated_deltanet",
    "gla",
    "gsa",
    "kda",
    "linear_attn",
    "mamba3",
    "raven",
    "retnet",
)


def install() -> None:
    """Registers the stand-ins when transformers' table of configs is there, now or later."""
    if not _register_if_ready():
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds no module itself. It sees every import until the table is there, then leaves sys.meta_path.

    transformers may be importing the table right now, and torch for it; then the next import after it is the occasion.
    """

    def find_spec(self, name, path=None, target=None):
        if _TABLE in sys.modules:
            if _register_if_ready():
                self._leave()
            return None
        if name != _TABLE:
            return None
        self._leave()
        spec = importlib.util.find_spec(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """The table's own loader, and the registration after it."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register_if_ready()


def _register_if_ready() -> bool:
    """Whether the table is there, with the stand-ins in it."""
    table = sys.modules.get(_TABLE)
    if not hasattr(table, "AutoConfig") or not hasattr(table, "PreTrainedConfig"):
        return False
    if "cyfa.hf" not in sys.modules:
        for model_type in MODEL_TYPES:
            if model_type not in table.CONFIG_MAPPING:  # another package may have come first
                table.AutoConfig.register(model_type, _stand_in(model_type, table))
    return True


def _stand_in(model_type: str, table) -> type:
    """A config class that gives way to the class of cyfa.hf when it is asked for an object."""

    def real():
        import cyfa.hf  # noqa: F401: registers the real classes in place of the stand-ins

        return table.CONFIG_MAPPING[model_type]

    class StandIn(table.PreTrainedConfig):
        def __new__(cls, *args, **kwargs):
            return real()(*args, **kwargs)

        @classmethod
        def from_dict(cls, config_dict, **kwargs):
            return real().from_dict(config_dict, **kwargs)

        @classmethod
        def from_pretrained(cls, *args, **kwargs):
            return real().from_pretrained(*args, **kwargs)

    StandIn.model_type = model_type
    StandIn.__name__ = StandIn.__qualname__ = f"StandInFor_{model_type}"
    return StandIn
