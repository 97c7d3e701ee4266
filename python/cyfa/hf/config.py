"""The config class: the contents of config.json as attributes, checked and completed by the library."""

import dataclasses
import json

from transformers import PreTrainedConfig

from cyfa import nn

GENERIC = "cyfa"  # the model type of the class that takes every type
_DEFAULT_TYPE = "cyclic_flow_attention"

# What transformers keeps in a config beside the model's own keys. The library is not told of these.
_OF_TRANSFORMERS = {field.name for field in dataclasses.fields(PreTrainedConfig)} | {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "torch_dtype",
    "use_cache",
}


class CyfaConfig(PreTrainedConfig):
    """The config of a model of any type that the library knows (cyfa.nn.model_types()).

        CyfaConfig.from_pretrained(folder)                          # of a checkpoint
        CyfaConfig(model_type="gla", hidden_size=512)               # keys as in config.json; the rest are the type's defaults
        CyfaConfig(**json.loads(cyfa.nn.config_text("cyfa-400m")))  # a config that comes with the package

    Every key of the type is an attribute. A key that the type does not have raises ValueError. An attribute that is set later and is no key
    of the type is not part of the model: neither the library nor a saved folder is told of it.
    """

    model_type = GENERIC
    keys_to_ignore_at_inference = ["past_key_values"]

    use_cache: bool = True

    def __post_init__(self, **kwargs):
        own = {key: value for key, value in kwargs.items() if not _of_transformers(key)}
        wanted = type(self).model_type
        given = own.setdefault("model_type", _DEFAULT_TYPE if wanted == GENERIC else wanted)
        if wanted not in (GENERIC, given):
            raise ValueError(f"model_type is {given}, wanted {wanted}; CyfaConfig takes every type")
        self.model_type = given
        super().__post_init__(**{key: value for key, value in kwargs.items() if _of_transformers(key)})
        description = nn.describe(self._encode_special_floats(own))
        self._architecture = description["architecture"]
        own |= self._decode_special_floats(description["config"])
        self._own_keys = list(own)
        for key, value in own.items():
            if key != "rope_scaling" or value is not None:  # deprecated: transformers warns of each attribute of that name
                setattr(self, _attribute(key), value)

    def to_dict(self):
        attributes = super().to_dict() | {"model_type": self.model_type, "architectures": [self._architecture]}
        output = {key: value for key, value in attributes.items() if _of_transformers(key)}
        output |= {key: attributes[_attribute(key)] for key in self._own_keys if _attribute(key) in attributes}
        for key in ("_architecture", "_own_keys"):
            output.pop(key, None)
        return output

    def text(self) -> str:
        """The model's own keys as the library takes them (cyfa.nn.config_text)."""
        values = self.to_dict()
        return json.dumps(self._encode_special_floats({key: values[key] for key in self._own_keys if key in values}))

    def describe(self) -> dict:
        """What the library knows of this model: cyfa.nn.describe()."""
        return nn.describe(json.loads(self.text()))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        """Reads config.json of a folder or of a repository of the Hub."""
        keys, kwargs = cls.get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls.from_dict(keys, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoConfig"):
        """Does nothing: the class is installed with its package, and no checkpoint needs a copy of its source."""


def _of_transformers(key: str) -> bool:
    return key in _OF_TRANSFORMERS or key.startswith("_")


def _attribute(key: str) -> str:
    """The attribute that holds a key. transformers allows `layer_types` only names of its own."""
    return "layer_kinds" if key == "layer_types" else key
