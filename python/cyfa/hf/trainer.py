"""transformers' Trainer with weight decay by the models' tables."""

from transformers import Trainer

from cyfa import nn


class CyfaTrainer(Trainer):
    """Trainer whose weight decay applies to the parameters that the library's table of the model names: matrices, and neither gates, norms,
    biases nor readouts. (Trainer itself decays all whose name has no "bias" or "norm".)"""

    def get_decay_parameter_names(self, model) -> list[str]:
        decayed = {id(parameter) for parameter in nn.optimizer_groups(model, 1.0)[0]["params"]}
        return [name for name, parameter in model.named_parameters() if id(parameter) in decayed]
