#!/usr/bin/env python3
"""Writes docs/benchmarks.md and its plots from the newest file of bench/results. With --check: fails if they are not what it would write."""

import argparse
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = {  # (pass, B, T): ms
    ("forward", 32, 2048): 0.40, ("backward", 32, 2048): 1.05, ("forward", 8, 8192): 0.42, ("backward", 8, 8192): 1.10,
    ("forward", 2, 32768): 0.60, ("backward", 2, 32768): 1.40,
}
LAYER = (4, 256, 256, 128)  # H, K, V, M of the 400M model
COLOURS = {"cyfa": "#1b6ca8", "fla": "#c8553d", "torch": "#6b8e23"}
LIMITS = {"o": 0.0047, "dq": 0.0051, "dk": 0.0051, "dv": 0.0047, "dlog_alpha": 0.0039, "dbeta": 0.0043, "dreadout": 0.0043}


def newest():
    files = sorted((ROOT / "bench/results").glob("*.json"))
    files = [f for f in files if "copy_tb_s" in json.loads(f.read_text())]
    if not files:
        sys.exit("benchmarks_doc: no file of bench/gpu_bench.py under bench/results")
    return files[-1]


def sizes(row):
    return row["H"], row["K"], row["V"], row["M"]


def of_layer(rows):
    return [r for r in rows if r["op"] != "cyclic_flow" or sizes(r) == LAYER]


def shape_name(row):
    return f"packed, {row['sequences']} sequences of {row['T']:,} tokens" if "sequences" in row else f"B{row['B']} T{row['T']}"


def pairs(rows, which):
    """(ours, the peer's or None) of each shape."""
    ours = sorted((r for r in rows if r["impl"] == "cyfa" and r.get("pass") == which), key=lambda r: r["B"] if which == "step" else 0)
    key = lambda r: (r["B"], r["T"], sizes(r), r.get("sequences"))  # noqa: E731
    peers = {key(r): r for r in rows if r["impl"] == "fla" and r["op"] == "cyclic_flow" and r.get("pass") == which}
    return [(r, peers.get(key(r))) for r in ours]


def operator_table(rows):
    lines = ["| shape | pass | cyfa, ms | p10 .. p90 | target | FLA 0.6.0, ms | times faster | share of the floor | peak, GiB | FLA's peak |", "|---|" + "---|" * 9]
    for which in ("forward", "backward"):
        for ours, peer in pairs(rows, which):
            target = TARGETS.get((which, ours["B"], ours["T"])) if "sequences" not in ours else None
            lines.append(
                f"| {shape_name(ours)} | {which} | {ours['ms']:.3f} | {ours['ms_p10']:.3f} .. {ours['ms_p90']:.3f} | " + (f"{target:.2f}" if target else "") +
                (f" | {peer['ms']:.3f} | {peer['ms'] / ours['ms']:.2f}" if peer else " | | ") + f" | {ours['floor_share']:.2f} | {ours['peak_gib']:.2f} | " +
                (f"{peer['peak_gib']:.2f}" if peer else "") + " |")
    return lines


def step_table(rows):
    lines = ["| batch | by itself: cyfa, us | FLA 0.6.0 | a copy of as many bytes | one of many in a row: cyfa, us | share of memory's speed | FLA 0.6.0 | a copy |",
             "|---|" + "---|" * 7]
    copies = {r["B"]: r for r in rows if r["op"] == "copy"}
    for ours, peer in pairs(rows, "step"):
        us = lambda row, name: f"{row[name] * 1e3:.1f}" if row and row.get(name) else ""  # noqa: E731
        others = (peer, copies.get(ours["B"]))
        share = f"{ours['floor_share'] * ours['ms'] / ours['in_a_row_ms']:.2f}" if ours.get("in_a_row_ms") else ""
        lines.append(f"| {ours['B']} | {us(ours, 'ms')} | " + " | ".join(us(r, "ms") for r in others) + f" | {us(ours, 'in_a_row_ms')} | {share} | " +
                     " | ".join(us(r, "in_a_row_ms") for r in others) + " |")
    return lines


def sizes_table(rows):
    lines = ["| H, K = V, M | forward: cyfa, ms | FLA 0.6.0 | times faster | backward: cyfa, ms | FLA 0.6.0 | times faster | share of the floor |", "|---|" + "---|" * 7]
    backward = {sizes(ours): (ours, peer) for ours, peer in pairs(rows, "backward")}
    for ours, peer in pairs(rows, "forward"):
        both = lambda r, p: f"{r['ms']:.3f} | " + (f"{p['ms']:.3f} | {p['ms'] / r['ms']:.2f}" if p else " | ")  # noqa: E731
        H, K, _, M = sizes(ours)
        back, back_peer = backward[sizes(ours)]
        lines.append(f"| {H}, {K}, {M} | {both(ours, peer)} | {both(back, back_peer)} | {ours['floor_share']:.2f}, {back['floor_share']:.2f} |")
    return lines


def context_table(rows):
    lines = ["| operator | of | shape | forward, ms | backward, ms | peak, GiB |", "|---|" + "---|" * 5]
    others = [r for r in rows if r["op"] not in ("cyclic_flow", "copy") and "ms" in r]
    for row in (r for r in others if r["pass"] == "forward"):
        back = next((r for r in others if r["pass"] == "backward" and (r["op"], r["B"], r["T"]) == (row["op"], row["B"], row["T"])), None)
        lines.append(f"| {row['op']} | {row['impl']} | B{row['B']} T{row['T']} | {row['ms']:.3f} | " + (f"{back['ms']:.3f} | {back['peak_gib']:.2f} |" if back else " | |"))
    return lines


def error_table(errors):
    names = list(next(iter(errors.values()))["cyfa"])
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for tokens, of in errors.items():
        for impl in ("cyfa", "fla"):
            lines.append(f"| {impl}, T = {tokens[1:]} | " + " | ".join(f"{of[impl][name]:.4f}" for name in names) + " |")
    lines.append("| limit | " + " | ".join(f"{LIMITS[n]:.4f}" if n in LIMITS else ".010 (512), .020 (1,024)" if n == "ddelta" else "" for n in names) + " |")
    return lines


class Plot:
    """A small chart with logarithmic x, as SVG."""

    WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 340, 60, 44, 34, 150

    def __init__(self, title, x_label, y_label, xs, top):
        self.parts = []
        self.xs, self.top = xs, top
        self.text(self.LEFT, 20, title, size=14, weight="bold")
        self.text(self.LEFT + self.inner_width() / 2, self.HEIGHT - 8, x_label, anchor="middle")
        self.parts.append(f'<text x="14" y="{self.TOP + self.inner_height() / 2:.0f}" transform="rotate(-90 14 {self.TOP + self.inner_height() / 2:.0f})" '
                          f'text-anchor="middle" font-size="12">{y_label}</text>')
        for x in xs:
            self.text(self.x(x), self.HEIGHT - self.BOTTOM + 16, f"{x:,}", anchor="middle")
        step = 10 ** math.floor(math.log10(top / 4))
        step *= next(f for f in (1, 2, 5, 10) if top / (step * f) <= 6)
        for i in range(int(top / step) + 1):
            self.parts.append(f'<line x1="{self.LEFT}" x2="{self.WIDTH - self.RIGHT}" y1="{self.y(i * step):.1f}" y2="{self.y(i * step):.1f}" stroke="#ddd"/>')
            self.text(self.LEFT - 6, self.y(i * step) + 4, f"{i * step:g}", anchor="end")

    def inner_width(self):
        return self.WIDTH - self.LEFT - self.RIGHT

    def inner_height(self):
        return self.HEIGHT - self.TOP - self.BOTTOM

    def x(self, value):
        low, high = math.log(self.xs[0]), math.log(self.xs[-1])
        return self.LEFT + 14 + (math.log(value) - low) / max(1e-9, high - low) * (self.inner_width() - 28)

    def y(self, value):
        return self.TOP + (1 - value / self.top) * self.inner_height()

    def text(self, x, y, words, anchor="start", size=12, weight="normal", colour="#222"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}">{words}</text>')

    def line(self, points, label, colour, dashed):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for x, y in points:
            self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>')
        self.text(self.x(points[-1][0]) + 20, self.y(points[-1][1]) + 4, label, colour=colour)

    def svg(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.WIDTH}" height="{self.HEIGHT}" font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
        return head + "\n".join(self.parts) + "\n</svg>\n"


def plots(rows):
    plain = [r for r in rows if r["op"] == "cyclic_flow" and r.get("pass") in ("forward", "backward") and "sequences" not in r and "ms" in r]
    lengths = sorted({r["T"] for r in plain})
    time = Plot("65,536 tokens of 4 heads: milliseconds", "tokens of a sequence", "ms", lengths, 1.1 * max(r["ms"] for r in plain))
    ratios = []
    for which, dashed in (("forward", True), ("backward", False)):
        for impl in ("cyfa", "fla"):
            points = sorted((r["T"], r["ms"]) for r in plain if r["impl"] == impl and r["pass"] == which)
            if points:
                time.line(points, f"{impl} {which}", COLOURS[impl], dashed)
        both = [(ours["T"], peer["ms"] / ours["ms"]) for ours, peer in pairs(rows, which) if peer and "sequences" not in ours]
        if both:
            ratios.append((which, sorted(both), dashed))
    ratio = Plot("Times faster than flash-linear-attention 0.6.0", "tokens of a sequence", "ratio", lengths, 1.1 * max([1.0] + [y for _, p, _ in ratios for _, y in p]))
    for which, points, dashed in ratios:
        ratio.line(points, which, COLOURS["cyfa"], dashed)
    return {"docs/images/bench_time.svg": time.svg(), "docs/images/bench_ratio.svg": ratio.svg()}


def page(path, report):
    rows = of_layer(report["rows"])
    others = [r for r in report["rows"] if r not in rows]
    clocks = ", ".join(f"{name} {value}" for name, value in report["clocks"].items())
    lines = [
        "# Benchmarks on a GPU", "",
        f"<!-- Written by scripts/benchmarks_doc.py from bench/results/{path.name}: change that, not this. -->", "",
        f"{report['gpu']}, {report['date']}, commit {report['commit']}; " + ", ".join(f"{k} {v}" for k, v in report["versions"].items()) +
        f"; clocks: {clocks or 'unknown'}; a copy of 1 GiB moves {report['copy_tb_s']:.2f} TB/s.", "",
        "`make gpu-bench` runs it again: both implementations in one process on the same inputs, the peer's autotuning finished, the L2 cache flushed before "
        "each call, medians of the GPU's time while the host is ahead of it. H = 4, K = V = 256, M = 128, bf16. The floor: every tensor read and written once, or the products of "
        "chunks of 64 tokens at 790 TFLOP/s, whichever takes longer." + (" " + report["notes"] if report.get("notes") else ""), "",
        "## The operator", "", *operator_table(rows), "",
        "The peak counts inputs, results and what lives between; the backward rows' that of forward and backward together.", "",
        "![Time against length](images/bench_time.svg)", "", "![Ratio to the peer](images/bench_ratio.svg)", "",
        "## The decoding step", "", *step_table(rows), "",
        "fp32 states, which are read and written once. By itself: a launch between two events, of which some 3 us are the launch's own. In a row: as layers of a model, a CUDA graph of steps, each on "
        "states of its own, so that none finds them in the L2 cache. The share is of the speed of a copy of 1 GiB.", "",
    ]
    if others:
        lines += ["## Other sizes", "", f"B{others[0]['B']} T{others[0]['T']}, layers as wide as the 400M model's. The kernels have heads of 64, 128 and 256 columns and 128 slots, or 256 of both; what lies "
                  "between, and fewer slots, is filled up with zeros (docs/support.md).", "", *sizes_table(others), ""]
    if report["errors"]:
        lines += ["## Errors", "", "Relative L2 against the fp64 reference, on the same bf16 inputs.", "", *error_table(report["errors"]), ""]
    if any(r["op"] not in ("cyclic_flow", "copy") for r in rows):
        lines += ["## Other methods, for context", "", *context_table(rows), "",
                  "gsa: 128 slots of 256 + 256; kda: a 256 x 256 state a head; sdpa: causal softmax attention of 16 heads of 64.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    a = parser.parse_args()
    path = newest()
    report = json.loads(path.read_text())
    files = {"docs/benchmarks.md": page(path, report), **plots(of_layer(report["rows"]))}
    stale = [name for name, text in files.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if a.check:
        if stale:
            sys.exit("benchmarks_doc: not what bench/results says: " + ", ".join(stale) + "; run scripts/benchmarks_doc.py")
        return
    for name, text in files.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)
    print("wrote " + ", ".join(files))


if __name__ == "__main__":
    main()
