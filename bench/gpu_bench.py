#!/usr/bin/env python3
"""Times the operator on an NVIDIA GPU beside flash-linear-attention's Triton kernels, in one process and on the same inputs.

Both are first checked against the double-precision reference on a short case; a result that is far off ends the run. Then CUDA events time
each of them, with the L2 cache flushed before every call: forward, backward, and the decode step, the latter also within a CUDA graph of
many steps. The GPU is kept busy while the host issues a call, as in a training step, so that ms is GPU time; host_ms is the time the host
takes, which matters to callers who run the operator alone. Other head sizes and other methods run for context. The peer autotunes in its
first call, which is not timed. Rows go to bench/results/DATE-GPU.json.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ["flash-linear-attention==0.6.0", "fla-core==0.6.0"]
H, K, V, M = 4, 256, 256, 128  # a layer of the 400M model
SHAPES = [(32, 2048), (8, 8192), (2, 32768)]
OTHER_SIZES = [(16, 64, 64, 64), (8, 128, 128, 128), (4, 256, 256, 64), (4, 256, 256, 256)]  # H, K, V, M: other heads, same layer width
STEP_BATCHES = [1, 16, 64, 256]
NAMES = ["q", "k", "v", "log_alpha", "delta", "beta", "readout", "q_norm_weight", "k_norm_weight"]
FAR_OFF = 0.1  # relative L2 that rounding cannot explain
EPS = 1e-6
TFLOPS = 790e12  # dense bf16 products, as measured
IN_A_ROW = 500 << 20  # least bytes that the steps of one graph read and write: ten times the L2 cache
HEAD_START = 6_000_000  # cycles that the GPU waits, about 3 ms: longer than the host takes to issue a call


def say(text):
    print(text, file=sys.stderr, flush=True)


def find_peer(folder):
    if not (folder / "fla/ops/cyfa/chunk.py").exists():
        say("downloading " + " ".join(PEERS))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
        subprocess.run(pip + PEERS, check=True)
    sys.path.insert(0, str(folder))


class Clock:
    def __init__(self, repeats):
        self.repeats = repeats
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def time(self, call):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        events, host = [], []
        for _ in range(self.repeats):
            self.flush.zero_()
            torch.cuda._sleep(HEAD_START)
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            start = time.perf_counter()
            call()
            host.append((time.perf_counter() - start) * 1e3)
            pair[1].record()
            events.append(pair)
            torch.cuda.synchronize()  # else the host would wait for room in the launch queue while it issues the next call
        ms = sorted(a.elapsed_time(b) for a, b in events)
        return {"ms": statistics.median(ms), "ms_p10": ms[len(ms) // 10], "ms_p90": ms[len(ms) * 9 // 10],
                "host_ms": statistics.median(host)}

    def copy_speed(self):
        """Bytes per second of a copy of 1 GiB, counting reads and writes."""
        a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        return 2 * a.numel() / (self.time(lambda: b.copy_(a))["ms"] * 1e-3)


def make_inputs(B, T, sizes=(H, K, V, M), dtype=torch.bfloat16, device="cuda"):
    torch.manual_seed(1)
    H, K, V, M = sizes
    wide = [torch.randn(B, T, H, n) for n in (K, K, V)]
    log_alpha = -torch.exp(torch.rand(B, T, H) * 4.6 - 6.9) * torch.rand(H) * 16
    delta, beta = (torch.randn(B, T, H).sigmoid() for _ in range(2))
    readout = torch.eye(M - 1) + torch.randn(H, M - 1, M - 1) * 0.1 / (M - 1) ** 0.5
    norms = [1 + 0.1 * torch.randn(K) for _ in range(2)]
    tensors = [x.to(dtype) for x in wide] + [log_alpha, delta, beta, readout] + norms
    return {name: x.to(device).requires_grad_() for name, x in zip(NAMES, tensors)}


def cyfa(x, cu_seqlens=None, backend="auto"):
    places = [x[name] for name in NAMES[:7]]
    # No final state, which is the peer's default: training needs none.
    return torch.ops.cyfa.cyclic_flow(*places, q_norm_weight=x["q_norm_weight"], k_norm_weight=x["k_norm_weight"], cu_seqlens=cu_seqlens,
                                      norm_eps=EPS, final_state=False, backend=backend)[0]


def fla(x, cu_seqlens=None):
    from fla.ops.cyfa import chunk_cyfa

    named = {("g" if name == "log_alpha" else name): t for name, t in x.items()}
    return chunk_cyfa(**named, q_norm_eps=EPS, k_norm_eps=EPS, cu_seqlens=cu_seqlens)[0]


def results(call, x, grad):
    o = call(x)
    gradients = torch.autograd.grad(o, list(x.values()), grad)
    return {"o": o.detach(), **{"d" + name: g for name, g in zip(x, gradients)}}


def check(T):
    """Errors of both in bf16 against the reference, on the same inputs."""
    x = make_inputs(1, T)
    grad = torch.randn(1, T, H, V).to(x["v"].dtype).cuda()
    exact_x = {name: t.detach().double().cpu().requires_grad_() for name, t in x.items()}
    exact = results(lambda y: cyfa(y, backend="reference"), exact_x, grad.double().cpu())
    errors = {}
    for impl, call in (("cyfa", cyfa), ("fla", fla)):
        got = results(call, x, grad)
        errors[impl] = {name: float((got[name].double().cpu() - e).norm() / e.norm()) for name, e in exact.items()}
        say(f"check T{T} {impl}: " + ", ".join(f"{name} {error:.4f}" for name, error in errors[impl].items()))
    if not max(errors["cyfa"].values()) < FAR_OFF:
        sys.exit("gpu_bench: cyfa's results differ from the reference; nothing is timed")
    return errors


def time_op(clock, impl, op, shape, call, x, floors=(None, None)):
    """Two rows, forward and backward, of call(x) -> o. peak_gib includes inputs, results and intermediate tensors."""
    rows = []
    try:
        torch.cuda.empty_cache()
        o = call(x)
        grad = torch.randn_like(o)
        torch.autograd.grad(o, list(x.values()), grad)
        del o
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        base = clock.flush.numel()
        o = call(x)
        peak_forward = torch.cuda.max_memory_allocated() - base
        torch.autograd.grad(o, list(x.values()), grad)
        peak_both = torch.cuda.max_memory_allocated() - base
        forward = clock.time(lambda: call(x))
        o = call(x)
        backward = clock.time(lambda: torch.autograd.grad(o, list(x.values()), grad, retain_graph=True))
        passes = (("forward", forward, peak_forward, floors[0]), ("backward", backward, peak_both, floors[1]))
        for name, timing, peak, floor in passes:
            rows.append({"impl": impl, "op": op, "pass": name, "dtype": "bf16", **shape, **timing, "peak_gib": peak / 2**30,
                         "floor_share": floor / (timing["ms"] * 1e-3) if floor else None})
    except Exception as e:  # a peer's failure is reported as a row
        if impl == "cyfa":
            raise
        rows.append({"impl": impl, "op": op, "dtype": "bf16", **shape, "error": f"{type(e).__name__}: {e}"[:300]})
    for row in rows:
        of = "" if op != "cyclic_flow" or (row["H"], row["K"], row["M"]) == (H, K, M) else f" H{row['H']} K{row['K']} M{row['M']}"
        of += f" packed x{row['sequences']}" if "sequences" in row else ""
        result = (f"{row['ms']:.3f} ms ({row['ms_p10']:.3f} .. {row['ms_p90']:.3f}), peak {row['peak_gib']:.2f} GiB" if "ms" in row
                  else row["error"])
        say(f"{impl:6} {op:16} {row.get('pass', ''):8} B{row['B']} T{row['T']}{of}: {result}")
    return rows


def floors(tokens, sizes, bandwidth):
    """Lower bounds in seconds: all inputs read and outputs written once, or the products of chunks of 64 tokens at peak speed."""
    H, K, V, M = sizes
    units, C = tokens * H, 64
    flops = 2 * (C * (K + V + 2 * M) + 2 * M * (K + V) + 2 * M * M)  # per token: within the chunk; state reads and writes; readout
    forward = max(2 * 2 * (K + V) * units / bandwidth, units * flops / TFLOPS)
    backward = max(2 * (4 * K + 3 * V) * units / bandwidth, units * 2.2 * flops / TFLOPS)
    return forward, backward


def lengths_of_mixed_documents(total):
    torch.manual_seed(2)
    lengths = []
    while sum(lengths) < total:
        lengths.append(min(int(torch.exp(torch.randn(()) * 1.2 + 6.3)) + 1, total - sum(lengths)))
    return lengths


def operator_rows(clock, bandwidth, shapes, layers):
    for B, T in shapes:
        for impl, call in (("cyfa", cyfa), ("fla", fla)):  # the peer autotunes at every new size
            for sizes in layers:
                shape = {"B": B, "T": T, **dict(zip("HKVM", sizes))}
                yield from time_op(clock, impl, "cyclic_flow", shape, call, make_inputs(B, T, sizes), floors(B * T, sizes, bandwidth))


def packed_rows(clock, bandwidth):
    shape = {"H": H, "K": K, "V": V, "M": M}
    lengths = lengths_of_mixed_documents(65536)
    cu = torch.tensor([0] + lengths).cumsum(0).cuda()
    x = make_inputs(1, 65536)
    for impl, call in (("cyfa", cyfa), ("fla", fla)):
        sizes = {"B": 1, "T": 65536, **shape, "sequences": len(lengths)}
        yield from time_op(clock, impl, "cyclic_flow", sizes, lambda y, f=call: f(y, cu), x, floors(65536, (H, K, V, M), bandwidth))


def step_rows(clock, bandwidth):
    """Times a step alone, and within a graph of several steps on different states, which together exceed the L2 cache like those of a
    model's layers. A torch copy of as many bytes shows the speed that a launch of that size can reach."""
    for B in STEP_BATCHES:
        with torch.no_grad():
            x = {name: t.detach() for name, t in make_inputs(B, 1).items()}
            table = torch.ops.cyfa.cyclic_flow_readout_table(x["readout"])
            one = [x[name][:, 0].contiguous() for name in NAMES[:6]]
            norms = {name: x[name] for name in NAMES[7:]}
            moved = B * H * M * (K + V) * 4 * 2
            layers = max(4, min(24, -(-IN_A_ROW // moved)))
            states = [[torch.randn(B, H, K, M, device="cuda"), torch.randn(B, H, M, V, device="cuda"),
                       torch.zeros(B, H, device="cuda", dtype=torch.float64)] for _ in range(layers)]
            step = torch.ops.cyfa.cyclic_flow_step
            calls = {("cyfa", "cyclic_flow"): [lambda s=s: step(*one, table, *s, **norms, norm_eps=EPS) for s in states]}
            try:
                calls["fla", "cyclic_flow"] = fla_steps(x, layers)
            except Exception as e:
                say(f"fla    step: {type(e).__name__}: {e}")
            places = [torch.empty(2, moved // 2, dtype=torch.uint8, device="cuda") for _ in range(layers)]
            calls["torch", "copy"] = [lambda p=p: p[0].copy_(p[1]) for p in places]
            for (impl, op), steps in calls.items():
                timing = clock.time(steps[0])
                row = time_in_a_row(clock, steps)
                say(f"{impl:6} {op} step B{B}: {timing['ms'] * 1e3:.1f} us, {moved / timing['ms'] * 1e-9:.2f} TB/s; "
                    f"in a graph {row * 1e3:.1f} us, {moved / row * 1e-9:.2f} TB/s")
                yield {"impl": impl, "op": op, "pass": "step", "dtype": "bf16", "B": B, "T": 1, "H": H, "K": K, "V": V, "M": M, **timing,
                       "in_a_row_ms": row, "peak_gib": None, "floor_share": moved / bandwidth / (timing["ms"] * 1e-3)}


def time_in_a_row(clock, calls):
    """Milliseconds per call when all calls are one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return clock.time(graph.replay)["ms"] / len(calls)


def fla_steps(x, count):
    from fla.ops.cyfa import fused_recurrent_cyfa

    named = {("g" if name == "log_alpha" else name): t for name, t in x.items()}
    kind = {"q_norm_eps": EPS, "k_norm_eps": EPS, "output_final_state": True}
    states = [fused_recurrent_cyfa(**named, **kind)[1] for _ in range(count)]
    calls = [lambda s=s: fused_recurrent_cyfa(**named, **kind, initial_state=s) for s in states]
    calls[0]()
    return calls


def context_rows(clock):
    """Other methods with the same layer's state size: the peer's gated slot attention and gated delta rule, torch's softmax attention."""
    for B, T in SHAPES[:2]:
        def rnd(*sizes):
            return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16).requires_grad_()

        try:
            from fla.ops.gsa import chunk_gsa
            from fla.ops.kda import chunk_kda
        except Exception as e:
            say(f"fla: {type(e).__name__}: {e}")
            break
        qkv = {name: rnd(B, T, H, 256) for name in "qkv"}
        f = F.logsigmoid(torch.randn(B, T, H, M, device="cuda")) / 8
        gates = {"s": (1 - f.exp()).bfloat16().requires_grad_(), "g": f.bfloat16().requires_grad_()}
        shape = {"B": B, "T": T, "H": H, "K": 256, "V": 256}
        yield from time_op(clock, "fla", "gsa", {**shape, "M": M}, lambda x: chunk_gsa(**x)[0], {**qkv, **gates})
        g = F.logsigmoid(torch.randn(B, T, H, 256, device="cuda")).bfloat16().requires_grad_()
        beta = torch.sigmoid(torch.randn(B, T, H, device="cuda")).bfloat16().requires_grad_()
        yield from time_op(clock, "fla", "kda", {**shape, "M": None}, lambda x: chunk_kda(**x, use_qk_l2norm_in_kernel=True)[0],
                           {**qkv, "g": g, "beta": beta})
        heads = {name: rnd(B, 16, T, 64) for name in ("query", "key", "value")}
        yield from time_op(clock, "torch", "sdpa", {"B": B, "T": T, "H": 16, "K": 64, "V": 64, "M": None},
                           lambda x: F.scaled_dot_product_attention(**x, is_causal=True), heads)


def program_rows(program, *command, extra):
    """A measurement of a whole model by the program, which checks before it times; `extra` are keys that its rows lack."""
    say(" ".join(["cyfa bench", *command]))
    command = [str(program), "bench", *command, "--dtype", "bf16", "--device", "cuda", "--json"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    for row in json.loads(run.stdout):
        keys = ("impl", "op", "model", "dtype", "B", "T", "path", "ms", "tokens_per_s", "engine")
        yield {**{key: row[key] for key in keys if key in row}, **extra}


def training_rows(program, model, B, accumulate):
    config = str(ROOT / f"configs/{model}.json")
    yield from program_rows(program, "train", config, "--B", str(B), "--T", "2048", "--accumulate", str(accumulate), "--repeats", "10",
                            extra={"accumulate": accumulate})
    torch.cuda.empty_cache()
    say(f"training the peer's {model}")
    try:
        yield peer_training(model, B)
    except RuntimeError as e:  # it refuses some models with versions of Triton that miscompile them
        say(f"the peer does not train {model}: {e}")


def peer_training(model, B, T=2048, steps=8):
    """The peer's own model of the same config at its fastest: parameters and fused AdamW in bf16, the whole batch at once."""
    import fla.models  # noqa: F401  registers its model types
    from transformers import AutoConfig, AutoModelForCausalLM
    keys = json.loads((ROOT / f"configs/{model}.json").read_text())
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**keys, "use_cache": False})).cuda().to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    ids = torch.randint(0, keys["vocab_size"], (B, T), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for step in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        network(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step > 2:  # the first ones compile and tune
            seconds.append(time.perf_counter() - start)
    ms = statistics.median(seconds) * 1e3
    return {"impl": "fla", "op": "train", "model": model, "dtype": "bf16", "B": B, "T": T, "accumulate": 1, "ms": ms,
            "tokens_per_s": B * T / ms * 1e3, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}


def model_rows(program):
    model = "cyfa-400m"
    torch.cuda.empty_cache()
    yield from program_rows(program, "decode", str(ROOT / f"configs/{model}.json"), "--B", "1", "8", "16", "32", "64", extra={})
    yield from program_rows(program, "prefill", str(ROOT / f"configs/{model}.json"), "--T", "512", "2048", "120000", extra={})
    yield from training_rows(program, model, 32, 4)


def baseline_rows(program):
    for model in ("gdn-400m", "kda-400m", "gsa-400m"):
        yield from training_rows(program, model, 8, 1)


def gpu_facts():
    query = "name,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,driver_version"
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        values = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        name, *clocks, driver = [v.strip() for v in values.splitlines()[0].split(",")]
        return name, dict(zip(("sm", "mem", "max_sm", "max_mem"), clocks)), driver
    except (OSError, subprocess.CalledProcessError):
        return torch.cuda.get_device_name(), {}, "unknown"


def commit():
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build-cuda/libcyfa_ops.so",
                        help="library of the ops (default: build-cuda/libcyfa_ops.so)")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build-cuda/peers",
                        help="folder of the package fla, downloaded if it is missing (default: build-cuda/peers)")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build-cuda/cyfa",
                        help="the program, for whole models (default: build-cuda/cyfa)")
    parser.add_argument("--repeats", type=int, default=30, help="timed calls of each kind (default: %(default)s)")
    names = ["check", "op", "packed", "step", "sizes", "context", "models", "baselines"]
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="parts to run (default: all)")
    parser.add_argument("--add", action="store_true", help="keep the file's rows of other parts; they must be of the same commit and GPU")
    parser.add_argument("--commit", default="", help="commit of the library (default: asks git)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write (default: bench/results/DATE-GPU.json)")
    a = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_bench: torch sees no GPU here")
    if not a.library.exists():
        sys.exit(f"gpu_bench: {a.library} does not exist; make gpu-bench builds it")
    torch.ops.load_library(str(a.library))
    find_peer(a.peers)
    name, clocks, driver = gpu_facts()
    clock = Clock(max(3, a.repeats))
    bandwidth = clock.copy_speed()
    say(f"{name}: a copy moves {bandwidth * 1e-12:.2f} TB/s")
    report = {
        "commit": a.commit or commit(), "date": datetime.date.today().isoformat(), "gpu": name, "clocks": clocks,
        "copy_tb_s": bandwidth * 1e-12, "errors": {}, "rows": [],
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver, "fla": "0.6.0"},
    }
    short = re.sub(r"[^A-Za-z0-9]+", "-", name.replace("NVIDIA", "").strip())
    path = a.json or ROOT / f"bench/results/{report['date']}-{short}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if a.add and path.exists():
        before = json.loads(path.read_text())
        if any(before[key] != report[key] for key in ("commit", "gpu")):
            sys.exit(f"gpu_bench: {path} holds commit {before['commit']} on {before['gpu']}; --add needs the same commit and GPU")
        report.update(errors=before["errors"], rows=before["rows"])
    if "check" in a.only:
        report["errors"] = {f"T{T}": check(T) for T in (512, 1024)}
    parts = {"op": lambda: operator_rows(clock, bandwidth, SHAPES, [(H, K, V, M)]),
             "packed": lambda: packed_rows(clock, bandwidth),
             "step": lambda: step_rows(clock, bandwidth),
             "sizes": lambda: operator_rows(clock, bandwidth, SHAPES[:1], OTHER_SIZES),
             "context": lambda: context_rows(clock),
             "models": lambda: model_rows(a.program),
             "baselines": lambda: baseline_rows(a.program)}
    keys = ("impl", "op", "pass", "B", "T", "H", "K", "M", "sequences", "model")
    same = lambda x, y: all(x.get(key) == y.get(key) for key in keys)  # noqa: E731
    for part in (p for p in parts if p in a.only):
        for row in parts[part]():
            report["rows"] = [r for r in report["rows"] if not same(r, row)] + [row]
            path.write_text(json.dumps(report, indent=1) + "\n")  # keeps the rows if the rest is interrupted
    say(f"{len(report['rows'])} rows in {path}")


if __name__ == "__main__":
    main()
