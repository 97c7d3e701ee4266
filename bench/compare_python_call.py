#!/usr/bin/env python3
"""What a call of an op costs through Python, beside the same call from C++ in the same process, on small shapes.

The calls from C++ are a loop of TorchScript's interpreter, which enters torch's dispatcher without Python. Rounds of both alternate; the
figures are the least CPU time of a round's call. Prints a JSON line per op: {"op", "python_us", "cpp_us", "difference_us"}; exits with 1 if a
difference is above the limit.
"""

import argparse
import json
import sys
import time

import torch

from cyfa import ops

# Calls an op n times with its tensors. It returns the last o, so that no call is left out as unused.
LOOP = """
def loop(n: int, {typed}) -> Tensor:
    o = x0
    for _ in range(n):
        o = torch.ops.cyfa.{op}({names}){first}
    return o
"""


def cases():
    """(op, function in Python, tensors of the call) of small calls: one head, T = 4."""
    B, T, H, K, V, M = 1, 4, 1, 8, 8, 8
    q, k, v = torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, H, V)
    gates = -torch.rand(B, T, H), torch.rand(B, T, H), torch.rand(B, T, H)
    readout = torch.eye(M - 1).repeat(H, 1, 1)
    state = ops.empty_state(B, H, K, V, M)
    token = [x[:, 0].contiguous() for x in (q, k, v, *gates)]
    yield "cyclic_flow", ops.cyclic_flow, [q, k, v, *gates, readout]
    yield "cyclic_flow_step", lambda *x: ops.cyclic_flow_step(*x[:7], state), [*token, ops.readout_table(readout), *state]
    yield "scalar_gated_la", ops.scalar_gated_la, [q, k, v, gates[0]]
    yield "scalar_gated_la_step", ops.scalar_gated_la_step, [*token[:4], torch.zeros(B, H, K, V)]


def compiled_loop(op: str, count: int):
    names = [f"x{i}" for i in range(count)]
    first = "" if op.endswith("_step") else "[0]"  # of o and the final state
    source = LOOP.format(op=op, names=", ".join(names), first=first, typed=", ".join(f"{name}: Tensor" for name in names))
    return getattr(torch.jit.CompilationUnit(source), "loop")


def least_times(calls, rounds: int, repeats: int) -> list[float]:
    """Microseconds of CPU time of a call, for each of calls: functions that repeat it n times."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            begin = time.thread_time_ns()
            call(repeats)
            least[i] = min(least[i], (time.thread_time_ns() - begin) / repeats / 1e3)
    return least


def measure(rounds: int = 200, repeats: int = 5) -> list[dict]:
    torch.set_num_threads(1)
    rows = []
    for op, function, tensors in cases():
        loop = compiled_loop(op, len(tensors))

        def by_python(n, function=function, tensors=tensors):
            for _ in range(n):
                function(*tensors)

        with torch.no_grad():
            python, cpp = least_times([by_python, lambda n: loop(n, *tensors)], rounds, repeats)
        rows.append({"op": op, "python_us": round(python, 1), "cpp_us": round(cpp, 1), "difference_us": round(python - cpp, 1)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=float, default=30, help="microseconds that Python may add (default 30)")
    options = parser.parse_args()
    rows = measure()
    for row in rows:
        print(json.dumps(row))
    sys.exit(any(row["difference_us"] > options.limit for row in rows))


if __name__ == "__main__":
    main()
