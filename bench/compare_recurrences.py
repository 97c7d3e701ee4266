#!/usr/bin/env python3
"""Times the linear attention recurrences of the paper's Table 1 beside token loops in plain PyTorch and beside cyclic_flow: forward and
backward, fp32, on the CPU and in one process, with the 400M model's state of 262,144 numbers per layer.

The loop keeps every state for its backward, so it runs on fewer tokens; its time is linear in them and is scaled to all. Results on those
tokens that disagree end the script, and no time is reported. Exit status: 0, or 1 if an op is slower than allowed.
"""

import argparse
import datetime
import json
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1e-4  # both run in fp32 and sum in different orders

# What the gate depends on (none, head, token, key or value), whether it is a delta rule, the largest allowed ratio to cyclic_flow's time.
OPS = {
    "la": ("none", False, 2.5),
    "fixed_scalar_gated_la": ("head", False, 2.5),
    "scalar_gated_la": ("token", False, 2.5),
    "row_gated_la": ("key", False, 2.5),
    "column_gated_la": ("value", False, 2.5),
    "delta_rule": ("none", True, 3.5),
    "scalar_gated_delta_rule": ("token", True, 3.5),
    "row_gated_delta_rule": ("key", True, 3.5),
}
WANTED_OVER_LOOP = 20


def gates(a, kind):
    rate = torch.rand(a.H) * 16
    if kind == "head":
        return -rate / 100
    shape = {"token": (a.B, a.T, a.H), "key": (a.B, a.T, a.H, a.K), "value": (a.B, a.T, a.H, a.V)}[kind]
    step = torch.exp(torch.rand(shape) * 4.6 - 6.9)
    return -step * (rate if kind == "token" else rate[:, None])


def make_inputs(a, kind, delta):
    """Inputs in the order of the op's schema."""
    torch.manual_seed(1)
    key = torch.randn(a.B, a.T, a.H, a.K)
    x = {"q": torch.randn(a.B, a.T, a.H, a.K), "k": torch.nn.functional.normalize(key, dim=-1) if delta else key,
         "v": torch.randn(a.B, a.T, a.H, a.V)}
    if delta:
        x["beta"] = torch.randn(a.B, a.T, a.H).sigmoid()
    if kind != "none":
        x["gate"] = gates(a, kind)
    return {name: t.requires_grad_() for name, t in x.items()}


def some_tokens(x, count):
    return {name: (t if t.dim() == 1 else t[:, :count]).detach().requires_grad_() for name, t in x.items()}


def token_loop(x, kind):
    """Table 1 token by token, with the same products and sums as the token loops of flash-linear-attention's tests."""
    q, k, v = x["q"] * x["q"].shape[-1] ** -0.5, x["k"], x["v"]
    state = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        if kind != "none":
            gate = (x["gate"] if kind == "head" else x["gate"][:, t]).exp()
            shapes = {"head": (..., None, None), "token": (..., None, None), "key": (..., None), "value": (..., None, slice(None))}
            state = state * gate[shapes[kind]]
        write = v[:, t]
        if "beta" in x:
            write = (write - (state * k[:, t, :, :, None]).sum(-2)) * x["beta"][:, t, :, None]
        state = state + k[:, t, :, :, None] * write[:, :, None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1)


def cyclic_flow_inputs(a):
    torch.manual_seed(1)
    m = a.M - 1
    x = {
        "q": torch.randn(a.B, a.T, a.H, a.K),
        "k": torch.randn(a.B, a.T, a.H, a.K),
        "v": torch.randn(a.B, a.T, a.H, a.V),
        "log_alpha": gates(a, "token"),
        "delta": torch.randn(a.B, a.T, a.H).sigmoid(),
        "beta": torch.randn(a.B, a.T, a.H).sigmoid(),
        "readout": torch.eye(m) + torch.randn(a.H, m, m) * 0.1 / m**0.5,
    }
    return {name: t.requires_grad_() for name, t in x.items()}


def timed(call, x):
    """Seconds of forward and backward together, and o with the gradients."""
    torch.manual_seed(2)
    grad = torch.randn(x["v"].shape)
    start = time.perf_counter()
    o = call(x)
    gradients = torch.autograd.grad(o, list(x.values()), grad)
    seconds = time.perf_counter() - start
    return seconds, {"o": o.detach(), **{"d_" + name: g for name, g in zip(x, gradients)}}


def worst_error(op, ours, theirs):
    errors = {name: float((ours[name].double() - t.double()).norm() / t.double().norm()) for name, t in theirs.items()}
    worst = max(errors, key=errors.get)
    if not errors[worst] <= LIMIT:
        sys.exit(f"compare_recurrences: {worst} of {op} differs by {errors[worst]:.2e} (relative L2), limit {LIMIT:.0e}: "
                 "no time is reported")
    return errors[worst]


def compare(a, op, flow):
    kind, delta, allowed = OPS[op]
    call = lambda x: getattr(torch.ops.cyfa, op)(*x.values())[0]
    loop = lambda x: token_loop(x, kind)
    x = make_inputs(a, kind, delta)
    short = some_tokens(x, min(a.T, a.loop_tokens))
    error = worst_error(op, timed(call, short)[1], timed(loop, short)[1])
    # Alternating runs, and the best of each, so that a busy moment of the machine favours none of them.
    runs = [(timed(call, x)[0], timed(flow, cyclic_flow_inputs(a))[0], timed(loop, short)[0]) for _ in range(a.repeats)]
    ours, flows, loop_seconds = (min(times) for times in zip(*runs))
    loop_seconds *= a.T / short["q"].shape[1]
    row = {"op": op, "ms": ours * 1e3, "loop_ms": loop_seconds * 1e3, "cyclic_flow_ms": flows * 1e3, "over_loop": loop_seconds / ours,
           "of_cyclic_flow": ours / flows, "rel_l2": error}
    good = row["over_loop"] >= WANTED_OVER_LOOP and row["of_cyclic_flow"] <= allowed
    print(f"{op:24s} {row['ms']:9.1f} ms  loop {row['loop_ms']:9.0f} ms: ratio {row['over_loop']:5.1f}  "
          f"cyclic_flow {row['cyclic_flow_ms']:7.1f} ms: {row['of_cyclic_flow']:4.2f} times (at most {allowed})  "
          f"{'ok' if good else 'TOO SLOW'}", flush=True)
    return row, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("B", 1), ("T", 2048), ("H", 4), ("K", 256), ("V", 256), ("M", 128)):
        parser.add_argument(f"--{name}", type=int, default=size, help="size (default: %(default)s)")
    parser.add_argument("--loop-tokens", type=int, default=512, help="tokens that the loop runs on (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs, of which the best counts (default: %(default)s)")
    parser.add_argument("--ops", nargs="*", choices=list(OPS), default=list(OPS), help="ops to time (default: all)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="folder of libcyfa_ops.so (default: build)")
    parser.add_argument("--json", help="write the rows as JSON to this file")
    a = parser.parse_args()
    library = a.build / "libcyfa_ops.so"
    if not library.exists():
        sys.exit(f"compare_recurrences: {library} does not exist; run make build")
    torch.ops.load_library(str(library))
    schemas = {s.name.removeprefix("cyfa::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("cyfa::")}
    missing = {name for name in schemas if name + "_step" in schemas} - {"cyclic_flow"} - set(OPS)
    if missing:
        sys.exit(f"compare_recurrences: no loop is written here for {', '.join(sorted(missing))}; add it to OPS")
    print(f"B{a.B} T{a.T} H{a.H} K{a.K} V{a.V} M{a.M} fp32, {torch.get_num_threads()} threads, forward + backward", flush=True)
    flow = lambda x: torch.ops.cyfa.cyclic_flow(*x.values())[0]
    timed(flow, cyclic_flow_inputs(a))
    rows, good = zip(*(compare(a, op, flow) for op in a.ops))
    if a.json:
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        shape = {name: getattr(a, name) for name in "BTHKVM"}
        about = {"dtype": "fp32", "device": "cpu", **shape, "threads": torch.get_num_threads(), "date": date, "torch": torch.__version__}
        pathlib.Path(a.json).write_text("[\n" + ",\n".join(json.dumps({**row, **about}) for row in rows) + "\n]\n")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
