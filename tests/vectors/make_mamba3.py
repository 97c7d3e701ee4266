"""Writes tests/vectors/mamba3_{siso,mimo}: tiny checkpoints of Mamba-3 and what they give, for `cyfa verify model`.

    python tests/vectors/make_mamba3.py MAMBA_SSM_SOURCES

The recurrence is the reference that state-spaces/mamba keeps beside its decoding kernel (mamba_ssm/ops/cute/mamba3/mamba3_step_fn.py,
selective_state_update_fused_ref_v2), run token by token in double with autograd. The parts around it follow mamba_ssm/modules/mamba3.py and
the rotation of mamba_ssm/ops/triton/mamba3. Run by hand; needs torch and the sources of mamba-ssm 2.3.2 (sdist).
"""

import ast
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from vector_files import write_model

HERE = pathlib.Path(__file__).parent


def reference(sources):
    path = pathlib.Path(sources) / "mamba_ssm/ops/cute/mamba3/mamba3_step_fn.py"
    name = "selective_state_update_fused_ref_v2"
    function = next(n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == name)
    scope = {"torch": torch}
    exec(compile(ast.Module([function], []), str(path), "exec"), scope)
    return scope[name]


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x, angle, pairwise):
    half = x.shape[-1] // 2
    angle = F.pad(angle, (0, half - angle.shape[-1])).unsqueeze(1)
    pairs = x.unflatten(-1, (half, 2)) if pairwise else x.unflatten(-1, (2, half)).transpose(-1, -2)
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return (turned if pairwise else turned.transpose(-1, -2)).flatten(-2)


def mixer(config, p, u, step):
    P, N, G = config["head_dim"], config["state_size"], config["n_groups"]
    heads = config["expand"] * config["hidden_size"] // P
    mimo = config["is_mimo"]
    R = config["mimo_rank"] if mimo else 1
    angles = int(N * config["rope_fraction"]) // 2
    B = u.shape[0]
    state, angle = u.new_zeros(B, heads, P, N), u.new_zeros(B, heads, angles)
    last_k, last_x = u.new_zeros(B, R, heads, N), u.new_zeros(B, heads, P)
    ones = u.new_ones(R, heads, P)
    by_rank = lambda name: p[name].transpose(0, 1)
    xproj, zproj, oproj = (by_rank("mimo_" + s) if mimo else ones for s in "xzo")
    out = []
    for t in range(u.shape[1]):
        sizes = [heads * P, heads * P, R * G * N, R * G * N, heads, heads, heads, angles]
        z, x, b, c, dd_dt, dd_A, trap, turn = torch.split(u[:, t] @ p["in_proj.weight"].T, sizes, -1)
        A = torch.clamp(-F.softplus(dd_A), max=-config["A_floor"])
        dt = F.softplus(dd_dt + p["dt_bias"])
        angle = angle + torch.tanh(turn).unsqueeze(1) * dt.unsqueeze(-1) * math.pi
        normed = lambda y, s: rms_norm(y.view(B, R, G, N), p[s + "_norm.weight"], 1e-5).repeat_interleave(heads // G, 2)
        key = lambda y, s: rotate(normed(y, s) + by_rank(s + "_bias"), angle, not mimo)
        b, c, x, z = key(b, "B"), key(c, "C"), x.view(B, heads, P), z.view(B, heads, P)
        y, state = step(state, A, b, c, xproj, x, zproj, z, dt, last_k, last_x, torch.sigmoid(trap), p["D"], oproj, compute_dtype=u.dtype)
        last_k, last_x = b, x
        out.append(y.flatten(1) @ p["out_proj.weight"].T)
    return torch.stack(out, 1)


def model(config, p, ids, step):
    sub = lambda prefix: {k[len(prefix):]: v for k, v in p.items() if k.startswith(prefix)}
    x = p["backbone.embeddings.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        block = sub(f"backbone.layers.{i}.")
        own = {k[6:]: v for k, v in block.items() if k.startswith("mixer.")}
        x = x + mixer(config, own, rms_norm(x, block["norm.weight"], config["norm_eps"]), step)
    return rms_norm(x, p["backbone.norm_f.weight"], config["norm_eps"]) @ p["lm_head.weight"].T


def shapes(config):
    d, V, N, P, G = config["hidden_size"], config["vocab_size"], config["state_size"], config["head_dim"], config["n_groups"]
    inner = config["expand"] * d
    heads, R = inner // P, config["mimo_rank"] if config["is_mimo"] else 1
    yield "backbone.embeddings.weight", (V, d)
    for i in range(config["num_hidden_layers"]):
        at = f"backbone.layers.{i}."
        yield at + "norm.weight", (d,)
        at += "mixer."
        yield at + "in_proj.weight", (2 * inner + 2 * R * G * N + 3 * heads + int(N * config["rope_fraction"]) // 2, d)
        yield at + "out_proj.weight", (d, inner)
        shapes = {"dt_bias": (heads,), "D": (heads,), "B_bias": (heads, R, N), "C_bias": (heads, R, N), "B_norm.weight": (N,),
                  "C_norm.weight": (N,)}
        for name, shape in shapes.items():
            yield at + name, shape
        if config["is_mimo"]:
            for s in "xzo":
                yield at + "mimo_" + s, (heads, R, P)
    yield "backbone.norm_f.weight", (d,)
    yield "lm_head.weight", (V, d)


def main():
    step = reference(sys.argv[1])
    for name, mimo in (("siso", False), ("mimo", True)):
        config = {"architectures": ["Mamba3ForCausalLM"], "model_type": "mamba3", "hidden_size": 16, "num_hidden_layers": 2,
                  "expand": 2, "head_dim": 8,
                  "state_size": 8, "n_groups": 1, "is_mimo": mimo, "mimo_rank": 4, "rope_fraction": 0.5, "A_floor": 1e-4, "norm_eps": 1e-5,
                  "vocab_size": 24, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        random = torch.Generator().manual_seed(7)
        p = {}
        for key, shape in shapes(config):
            x = torch.randn(shape, generator=random) * (0.3 if key.endswith("weight") and len(shape) == 2 else 0.2)
            if key.endswith(("norm.weight", "norm_f.weight", ".D", "B_bias", "C_bias")) or "mimo_" in key:
                x = x + (0.5 if "mimo_" in key else 1.0)
            p[key] = x
        exact = {k: v.double().requires_grad_() for k, v in p.items()}
        ids = torch.randint(3, config["vocab_size"], (2, 22), generator=random)
        logits = model(config, exact, ids, step)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        expected = {"input_ids": ids, "logits": logits.detach().float(), "loss": loss.detach().float().reshape(1)}
        expected |= {f"grad.{k}": v.grad.float() for k, v in exact.items()}
        write_model(HERE / f"mamba3_{name}", config, p, expected)


main()
