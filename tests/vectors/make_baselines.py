"""Writes vectors of every mixer whose origin runs on a CPU, and the origins' defaults and initialisations.

    python tests/vectors/make_baselines.py FLA_SOURCES [NAME ...]

FLA_SOURCES is the folder that holds the package `fla` of flash-linear-attention 0.6.0; transformers (LLaMA, Mistral), torch, triton and
einops must be installed. NAME restricts the run to some of MODELS. Run by hand.

For each of MODELS it writes a folder like those of make_mamba3.py: a tiny checkpoint and the logits, loss and gradients that the original
model gives, in fp32. config.json has only the keys that differ from the origin's defaults, so that a wrong default shows. Every parameter
is moved off its initial value, so that one which is swapped or ignored shows. origins.json has, for each model_type, the default of every
key of the origin's config class and the distribution of every parameter that the origin initialises.

The origin's Triton kernels run in Triton's interpreter, where there is nothing to tune and loop variables are plain integers although the
kernels expect tensors. Two operators do not run there and give way to the plain torch code beside them: CyFA's, which insists on a GPU, to
the token loop of fla/ops/cyfa/naive.py, and ABC's to the sums of fla/ops/abc/naive.py.
"""

import json
import os
import pathlib
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("ignore")

import torch
import torch.nn.functional as F
import transformers
import triton.runtime.autotuner

from vector_files import write_model

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, sys.argv[1])
triton.runtime.autotuner.Autotuner._bench = lambda self, *args, config, **kwargs: [1.0, 1.0, 1.0]

import fla.layers.abc
import fla.layers.cyfa
import fla.models
from fla.ops.abc.naive import naive_cumsum_abc
from fla.ops.cyfa import naive_recurrent_cyfa


class Index(int):
    """An integer with the method that the kernels call on a loop variable."""

    def to(self, *_, **__):
        return self


def keep_index(name):
    plain = getattr(int, name)

    def method(self, other):
        result = plain(self, other)
        return Index(result) if isinstance(result, int) else result

    setattr(Index, name, method)


for operator in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"):
    keep_index(operator)


def index_range(*bounds):
    return map(Index, range(*(int(b.handle.data.item()) if hasattr(b, "handle") else int(getattr(b, "value", b)) for b in bounds)))


for name, module in list(sys.modules.items()):
    if name.startswith("fla.ops"):
        module.range = index_range


def cyfa_loop(*args, checkpoint_level=0, **kwargs):
    return naive_recurrent_cyfa(*args, **kwargs)


def abc_sums(q, k, v, s, initial_state, output_final_state):
    o, state = naive_cumsum_abc(*(x.transpose(1, 2) for x in (q, k, v, s)))  # heads before tokens
    return o.transpose(1, 2), state


fla.layers.abc.chunk_abc = abc_sums
fla.layers.cyfa.chunk_cyfa = cyfa_loop
fla.layers.cyfa.fused_recurrent_cyfa = cyfa_loop

FLA, HF = fla.models, transformers
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 24}
SHARED = TINY | {"intermediate_size": 24}
MODELS = {  # folder: library, class stem, config keys
    "cyclic_flow": (FLA, "CyclicFlowAttention", SHARED | {"num_heads": 2, "head_dim": 8, "num_slots": 8}),
    "transformer": (HF, "Llama", SHARED | {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "swa": (HF, "Mistral", SHARED | {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5}),
    "linear_attn": (FLA, "LinearAttention", SHARED | {"num_heads": 2, "num_kv_heads": 1}),
    "retnet": (FLA, "RetNet", SHARED | {"num_heads": 2}),
    "gla": (FLA, "GLA", SHARED | {"num_heads": 2, "num_kv_heads": 1, "use_short_conv": True}),
    "abc": (FLA, "ABC", SHARED | {"num_heads": 2, "num_slots": 8, "use_short_conv": True}),
    "gsa": (FLA, "GSA", SHARED | {"num_heads": 2, "num_kv_heads": 1, "num_slots": 4}),
    "raven": (FLA, "Raven", SHARED | {"num_heads": 2, "num_kv_heads": 1, "num_slots": 8, "topk": 3}),
    "raven_gla": (FLA, "Raven", SHARED | {"num_heads": 2, "num_slots": 8, "topk": 3, "decay_type": "GLA", "router_type": "mlp",
                                          "router_score": "softmax", "use_output_gate": True, "use_rope": True}),
    # One group: on a CPU, the origin's code for whole sequences orders the heads of several groups differently than its kernels and steps.
    "mamba2": (FLA, "Mamba2", TINY | {"head_dim": 8, "state_size": 8}),
    "delta_net": (FLA, "DeltaNet", SHARED | {"num_heads": 2, "use_gate": True}),
    "gdn": (FLA, "GatedDeltaNet", SHARED | {"num_heads": 2, "head_dim": 8, "expand_v": 1, "num_v_heads": 4}),
    "kda": (FLA, "KDA", SHARED | {"num_heads": 2, "head_dim": 8, "num_v_heads": 4}),
}

# Models whose initialisations are recorded: wide enough for statistics, with every parameter that an option adds.
WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "pad_token_id": 3}
CONVOLVED = WIDE | {"use_short_conv": True, "conv_bias": True}
INITIAL = {
    "CyclicFlowAttention": CONVOLVED | {"num_heads": 32, "head_dim": 4, "num_slots": 8},
    "Llama": WIDE | {"num_attention_heads": 8, "intermediate_size": 64},
    "Mistral": WIDE | {"num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 64},
    "LinearAttention": WIDE | {"num_heads": 8},
    "RetNet": WIDE | {"num_heads": 8},
    "GLA": WIDE | {"num_heads": 8, "use_short_conv": True},
    "ABC": WIDE | {"num_heads": 8, "num_slots": 8, "use_short_conv": True},
    "GSA": WIDE | {"num_heads": 8, "num_slots": 8, "use_short_conv": True},
    "Raven": WIDE | {"num_heads": 32, "num_slots": 8, "topk": 3, "router_type": "mlp", "use_output_gate": True},
    "Mamba2": WIDE | {"head_dim": 4, "state_size": 8, "use_bias": True},
    "Mamba3": WIDE | {"head_dim": 4, "state_size": 8, "is_mimo": True, "use_bias": True},
    "DeltaNet": WIDE | {"num_heads": 8, "use_gate": True},
    "GatedDeltaNet": WIDE | {"num_heads": 32, "head_dim": 4},
    "KDA": WIDE | {"num_heads": 32, "head_dim": 4},
}
SEEDS = 100  # initial models over which a parameter's statistics are taken
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def config_class(library, stem):
    return getattr(library, stem + "Config")


def build(library, stem, keys):
    quiet = {"fuse_cross_entropy": False} if library is FLA else {"attn_implementation": "eager"}
    return getattr(library, stem + "ForCausalLM")(config_class(library, stem)(**keys, **quiet))


def write_vectors(name, library, stem, keys):
    torch.manual_seed(1)
    model = build(library, stem, keys).eval()  # in training Raven's router draws noise
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=random) * (0.3 if p.dim() == 2 else 0.2))
    ids = torch.randint(3, keys["vocab_size"], (2, 22), generator=random)
    logits = model(ids, use_cache=False).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    parameters = dict(model.named_parameters())
    config = {"architectures": [stem + "ForCausalLM"], "model_type": model.config.model_type} | keys
    expected = {"input_ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    write_model(HERE / name, config, {k: p.detach() for k, p in parameters.items()},
                expected | {f"grad.{k}": p.grad for k, p in parameters.items()})
    print(f"{name}: {sum(p.numel() for p in parameters.values())} parameters, loss {loss.item():.4f}", flush=True)


def defaults_of(library, stem):
    """The keys that the config class adds to those of every model, and the keys of tokens and head, with their defaults."""
    common = set(transformers.PretrainedConfig().to_dict()) - {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"}
    values = config_class(library, stem)().to_dict()
    values = {k: v for k, v in values.items() if k not in common and k not in ("model_type", "architectures", "transformers_version")}
    infinity = {"__float__": "Infinity"}  # as transformers writes it
    plain = lambda v: [plain(x) for x in v] if isinstance(v, (tuple, list)) else infinity if v == float("inf") else v
    return {k: plain(v) for k, v in sorted(values.items())}


def distributions(library, stem, keys):
    """Of every parameter of layer 0 and around the layers, over SEEDS models: the constant, or quantiles of the values."""
    values = {}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        for name, p in build(library, stem, keys).named_parameters():
            if ".layers.1." not in name:
                values.setdefault(name, []).append(p.detach().double())
    table = {}
    for name, drawn in values.items():
        if "embed" in name:
            pad = keys["pad_token_id"]
            table[name + "[padding]"] = {"zeros": all(bool((x[pad] == 0).all()) for x in drawn)}
            drawn = [torch.cat([x[:pad], x[pad + 1 :]]) for x in drawn]
        x = torch.stack(drawn).flatten()
        identity = torch.eye(drawn[0].shape[-1], dtype=torch.double)
        if drawn[0].dim() == 3 and drawn[0].shape[-1] == drawn[0].shape[-2] and all((y == identity).all() for y in drawn):
            table[name] = {"identity": True}
        elif x.min() == x.max():
            table[name] = {"constant": x[0].item()}
        else:
            quantiles = [sorted_value(x, p) for p in QUANTILES]
            table[name] = {"quantiles": [float(f"{q:.6g}") for q in quantiles], "values": x.numel()}
    return table


def sorted_value(x, share):
    return x.kthvalue(max(1, round(share * x.numel()))).values.item()


def as_text(facts):
    """JSON with a line for each default and each distribution."""
    row = lambda key, value: f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
    block = lambda table: "{\n" + ",\n".join("      " + row(k, v) for k, v in table.items()) + "\n    }"
    kinds = []
    for kind, fact in facts.items():
        parts = [f"    {json.dumps(k)}: {block(v) if isinstance(v, dict) else json.dumps(v)}" for k, v in fact.items()]
        kinds.append(f"  {json.dumps(kind)}: {{\n" + ",\n".join(parts) + "\n  }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def write_facts():
    facts = {}
    for stem, keys in INITIAL.items():
        library = HF if stem in ("Llama", "Mistral") else FLA
        version = f"transformers {transformers.__version__}" if library is HF else "flash-linear-attention 0.6.0"
        fact = {"origin": f"{version}, {stem}Config", "defaults": defaults_of(library, stem), "initial_config": keys,
                "initial": distributions(library, stem, keys)}
        facts[config_class(library, stem)().model_type] = fact
        print(f"{stem}: {len(fact['defaults'])} defaults, {len(fact['initial'])} distributions", flush=True)
    (HERE / "origins.json").write_text(as_text(facts))


def main():
    names = sys.argv[2:] or [*MODELS, "origins.json"]
    for name in names:
        if name == "origins.json":
            write_facts()
        else:
            write_vectors(name, *MODELS[name])


main()
