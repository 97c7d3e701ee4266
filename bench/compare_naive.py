#!/usr/bin/env python3
"""Times forward and backward of cyclic_flow beside a token loop in plain PyTorch, on the CPU and in one process.

The loop is naive_recurrent_cyfa of flash-linear-attention 0.6.0, the path of that package for machines without Triton. The package is
downloaded at first use; only the two files of the loop are loaded. Results that disagree end the script, and no time is reported.
"""

import argparse
import datetime
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
import types

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ["flash-linear-attention==0.6.0", "fla-core==0.6.0"]
# Both run in fp32 and sum in different orders. d_delta is a small difference of large sums over the whole sequence.
LIMIT, LIMIT_DELTA = 1e-4, 1e-3


def peer_folder(build):
    folder = build / "peers"
    if not (folder / "fla/ops/cyfa/naive.py").exists():
        print("downloading " + " ".join(PEERS), file=sys.stderr)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
        subprocess.run(command + PEERS, check=True)
    return folder


def stand_in_for_triton():
    """Empty triton modules: importing utils.py decorates kernels, but the loop uses none of them."""

    def jit(function=None, **_):
        return function if function is not None else jit

    triton, language, extra = (types.ModuleType(name) for name in ("triton", "triton.language", "triton.language.extra"))
    triton.jit, triton.language, language.extra, language.constexpr = jit, language, extra, object
    extra.libdevice = types.ModuleType("triton.language.extra.libdevice")
    return {module.__name__: module for module in (triton, language, extra, extra.libdevice)}


def load_naive(folder):
    package = types.ModuleType("fla_cyfa")
    package.__path__ = [str(folder / "fla/ops/cyfa")]
    sys.modules["fla_cyfa"] = package
    borrowed = stand_in_for_triton()
    saved = {name: sys.modules.get(name) for name in borrowed}
    sys.modules.update(borrowed)
    try:
        for name in ("utils", "naive"):
            spec = importlib.util.spec_from_file_location(f"fla_cyfa.{name}", folder / f"fla/ops/cyfa/{name}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return sys.modules["fla_cyfa.naive"].naive_recurrent_cyfa


def make_inputs(a):
    torch.manual_seed(1)
    m = a.M - 1
    # The loop keeps its clock in fp32. Increments that are multiples of 1/1024 make its sum exact, so that the clock is not rounded.
    delta = torch.randn(a.B, a.T, a.H).sigmoid().mul(1024).round().div(1024)
    step = torch.exp(torch.rand(a.B, a.T, a.H) * 4.6 - 6.9)
    inputs = {
        "q": torch.randn(a.B, a.T, a.H, a.K),
        "k": torch.randn(a.B, a.T, a.H, a.K),
        "v": torch.randn(a.B, a.T, a.H, a.V),
        "log_alpha": -step * torch.rand(a.H) * 16,
        "delta": delta,
        "beta": torch.randn(a.B, a.T, a.H).sigmoid(),
        "readout": torch.eye(m) + torch.randn(a.H, m, m) * 0.1 / m**0.5,
        "q_norm_weight": 1 + 0.1 * torch.randn(a.K),
        "k_norm_weight": 1 + 0.1 * torch.randn(a.K),
    }
    return {name: x.requires_grad_() for name, x in inputs.items()}, torch.randn(a.B, a.T, a.H, a.V)


def timed(call, inputs, grad):
    """Seconds of forward and backward together, and o with the gradients."""
    start = time.perf_counter()
    o = call()
    gradients = torch.autograd.grad(o, list(inputs.values()), grad)
    seconds = time.perf_counter() - start
    return seconds, {"o": o.detach(), **{"d_" + name: g for name, g in zip(inputs, gradients)}}


def compare(ours, theirs):
    errors = {name: float((ours[name].double() - x.double()).norm() / x.double().norm()) for name, x in theirs.items()}
    for name, error in errors.items():
        limit = LIMIT_DELTA if name == "d_delta" else LIMIT
        if not error <= limit:
            sys.exit(f"compare_naive: {name} differs by {error:.2e} (relative L2), limit {limit:.0e}: no time is reported")
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("B", 1), ("T", 2048), ("H", 4), ("K", 256), ("V", 256), ("M", 128)):
        parser.add_argument(f"--{name}", type=int, default=size, help="size (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of cyclic_flow; the loop runs once (default: %(default)s)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="folder of libcyfa_ops.so (default: build)")
    parser.add_argument("--json", help="write the rows as JSON to this file, or with - to the standard output")
    a = parser.parse_args()

    library = a.build / "libcyfa_ops.so"
    if not library.exists():
        sys.exit(f"compare_naive: {library} does not exist; run make build")
    torch.ops.load_library(str(library))
    naive = load_naive(peer_folder(a.build))
    inputs, grad = make_inputs(a)

    def run_ours():
        named = dict(inputs)
        norms = {name: named.pop(name) for name in ("q_norm_weight", "k_norm_weight")}
        return torch.ops.cyfa.cyclic_flow(*named.values(), **norms)[0]

    def run_theirs():
        named = dict(inputs)
        named["g"] = named.pop("log_alpha")
        return naive(**named, q_norm_eps=1e-6, k_norm_eps=1e-6)[0]

    print(f"B{a.B} T{a.T} H{a.H} K{a.K} V{a.V} M{a.M} fp32, {torch.get_num_threads()} threads, forward + backward", flush=True)
    timed(run_ours, inputs, grad)
    runs = [timed(run_ours, inputs, grad) for _ in range(a.repeats)]
    ours = sorted(seconds for seconds, _ in runs)[len(runs) // 2]
    print(f"cyclic_flow      {ours * 1e3:10.1f} ms (median of {len(runs)})", flush=True)
    theirs, expected = timed(run_theirs, inputs, grad)
    errors = compare(runs[-1][1], expected)
    print(f"naive token loop {theirs * 1e3:10.1f} ms (one run)")
    worst = max(errors, key=errors.get)
    print(f"ratio            {theirs / ours:10.1f}   results agree: o {errors['o']:.1e}, worst {worst} {errors[worst]:.1e} (relative L2)")
    if a.json:
        write_rows(a, ours, theirs, errors)


def write_rows(a, ours, theirs, errors):
    shape = {name: getattr(a, name) for name in "BTHKVM"}
    common = {"op": "cyclic_flow", "pass": "forward+backward", "dtype": "fp32", "device": "cpu", **shape}
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"threads": torch.get_num_threads(), "date": date, "machine": cpu_model(),
             "versions": {"torch": torch.__version__, "fla": "0.6.0"}}
    rows = [
        {"impl": "cyfa", **common, "ms": ours * 1e3, "times_faster": theirs / ours, "check_rel_l2": errors, **about},
        {"impl": "flash-linear-attention naive_recurrent_cyfa", **common, "ms": theirs * 1e3, **about},
    ]
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    if a.json == "-":
        print(text, end="")
    else:
        pathlib.Path(a.json).write_text(text)


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


if __name__ == "__main__":
    main()
