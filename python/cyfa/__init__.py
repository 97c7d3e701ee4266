"""Cyclic Flow Attention and its relatives for PyTorch: the ops, the models and the program of the C++ library.

    import cyfa
    o, state = cyfa.ops.cyclic_flow(q, k, v, log_alpha, delta, beta, readout)   # the operator
    model = cyfa.nn.CausalLM("cyfa-400m")                                       # a model as an nn.Module
    import cyfa.hf                                                              # Hugging Face transformers
    from cyfa.compat.fla import chunk_cyfa                                      # flash-linear-attention's signatures
"""

from cyfa import _library

library = _library.load()  # the path of the compiled library

from cyfa import nn, ops  # noqa: E402: they need the library
from cyfa.engine import train_engine  # noqa: E402

__version__ = __import__("torch").ops.cyfa.version()
__all__ = ["library", "nn", "ops", "train_engine"]
