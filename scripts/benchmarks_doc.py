#!/usr/bin/env python3
"""Writes docs/benchmarks.md, its pictures (by `cyfa show curves`) and README.md's headline table from the newest file in bench/results.

With --check nothing is written, and the exit status is 1 if one of them is stale. A results file has the rows of bench/gpu_bench.py. It may
also have rows of whole models, {"impl", "op": "train", "decode" or "prefill", "model", "dtype", "B", "tokens_per_s"}, with "T",
"accumulate", "recompute", "ms" and "peak_gib" where they apply.
"""

import argparse
import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 140  # the widest line of a page
PEER = "FLA 0.6.0"
TARGETS = {  # (pass, B, T): ms
    ("forward", 32, 2048): 0.40, ("backward", 32, 2048): 1.05,
    ("forward", 8, 8192): 0.42, ("backward", 8, 8192): 1.10,
    ("forward", 2, 32768): 0.60, ("backward", 2, 32768): 1.40,
}
LAYER = (4, 256, 256, 128)  # H, K, V, M of the 400M model
MODEL_OPS = ("train", "decode", "prefill")
X_LABEL = "tokens per sequence"
LIMITS = {"o": 0.0047, "dq": 0.0051, "dk": 0.0051, "dv": 0.0047, "dlog_alpha": 0.0039, "dbeta": 0.0043, "dreadout": 0.0043}
HEADLINE_SHAPES = [(32, 2048), (2, 32768)]  # B, T
HEADLINE_STEPS = [1, 64]  # batches of decode steps, of the operator and of whole models


def newest():
    files = sorted((ROOT / "bench/results").glob("*.json"))
    files = [f for f in files if "copy_tb_s" in json.loads(f.read_text())]
    if not files:
        sys.exit("benchmarks_doc: bench/results has no file of bench/gpu_bench.py")
    return files[-1]


def wrapped(text):
    return textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def table(head, lines):
    cells = lambda line: "| " + " | ".join(line) + " |"  # noqa: E731
    return [cells(head), "|" + "---|" * len(head), *map(cells, lines)]


def sizes(row):
    return row["H"], row["K"], row["V"], row["M"]


def of_layer(rows):
    return [r for r in rows if r["op"] not in MODEL_OPS and (r["op"] != "cyclic_flow" or sizes(r) == LAYER)]


def of_other_sizes(rows):
    return [r for r in rows if r["op"] == "cyclic_flow" and sizes(r) != LAYER]


def of_models(rows):
    return [r for r in rows if r["op"] in MODEL_OPS]


def shape_name(row):
    return f"packed, {row['sequences']} sequences, {row['T']:,} tokens" if "sequences" in row else f"B{row['B']} T{row['T']}"


def pairs(rows, which):
    """(ours, the peer's or None) of each shape."""
    ours = [r for r in rows if r["impl"] == "cyfa" and r.get("pass") == which]
    ours.sort(key=lambda r: r["B"] if which == "step" else 0)
    key = lambda r: (r["B"], r["T"], sizes(r), r.get("sequences"))  # noqa: E731
    peers = {key(r): r for r in rows if r["impl"] == "fla" and r["op"] == "cyclic_flow" and r.get("pass") == which}
    return [(r, peers.get(key(r))) for r in ours]


def model_pairs(rows):
    """The same of rows of whole models. Each side splits its batch into micro-batches as suits it best."""
    key = lambda r: tuple(r.get(name) for name in ("op", "model", "dtype", "B", "T", "recompute"))  # noqa: E731
    peers = {key(r): r for r in rows if r["impl"] == "fla"}
    return [(r, peers.get(key(r))) for r in rows if r["impl"] == "cyfa"]


def model_name(row):
    words = [f"{row['model']} in {row['dtype']}, batch {row['B']}"]
    if row["op"] == "prefill":
        return f"reading a prompt of {row['T']:,} tokens, {words[0]}"
    if row["op"] == "train":
        words += [f"{row['T']} tokens"]
        words += ["activation checkpointing"] if row.get("recompute") else []
    return ("training " if row["op"] == "train" else "decoding ") + ", ".join(words)


def operator_table(rows):
    lines = []
    for which in ("forward", "backward"):
        for ours, peer in pairs(rows, which):
            target = TARGETS.get((which, ours["B"], ours["T"])) if "sequences" not in ours else None
            lines.append([
                shape_name(ours), which, f"{ours['ms']:.3f}", f"{ours['ms_p10']:.3f} .. {ours['ms_p90']:.3f}",
                f"{target:.2f}" if target else "", f"{peer['ms']:.3f}" if peer else "", f"{peer['ms'] / ours['ms']:.2f}" if peer else "",
                f"{ours['floor_share']:.2f}", f"{ours['peak_gib']:.2f}", f"{peer['peak_gib']:.2f}" if peer else "",
            ])
    return table(["shape", "pass", "cyfa, ms", "p10 .. p90", "target", f"{PEER}, ms", "speed-up", "share of floor", "peak, GiB",
                  f"{PEER}, GiB"], lines)


def step_table(rows):
    us = lambda row, name: f"{row[name] * 1e3:.1f}" if row and row.get(name) else ""  # noqa: E731
    copies = {r["B"]: r for r in rows if r["op"] == "copy"}
    lines = []
    for ours, peer in pairs(rows, "step"):
        all_three = (ours, peer, copies.get(ours["B"]))
        share = f"{ours['floor_share'] * ours['ms'] / ours['in_a_row_ms']:.2f}" if ours.get("in_a_row_ms") else ""
        lines.append([str(ours["B"]), *(us(r, "ms") for r in all_three), *(us(r, "in_a_row_ms") for r in all_three), share])
    return table(["batch", "alone, us: cyfa", PEER, "copy", "back to back, us: cyfa", PEER, "copy", "share of copy bandwidth"], lines)


def sizes_table(rows):
    backward = {sizes(ours): (ours, peer) for ours, peer in pairs(rows, "backward")}
    both = lambda r, p: [f"{r['ms']:.3f}", *([f"{p['ms']:.3f}", f"{p['ms'] / r['ms']:.2f}"] if p else ["", ""])]  # noqa: E731
    lines = []
    for ours, peer in pairs(rows, "forward"):
        H, K, _, M = sizes(ours)
        back, back_peer = backward[sizes(ours)]
        lines.append([f"{H}, {K}, {M}", *both(ours, peer), *both(back, back_peer), f"{ours['floor_share']:.2f}, {back['floor_share']:.2f}"])
    return table(["H, K = V, M", "forward, ms: cyfa", PEER, "speed-up", "backward, ms: cyfa", PEER, "speed-up", "shares of floor"], lines)


def models_table(rows):
    number = lambda row, name, form: format(row[name], form) if row and row.get(name) is not None else ""  # noqa: E731
    lines = []
    for ours, peer in model_pairs(rows):
        speed_up = f"{ours['tokens_per_s'] / peer['tokens_per_s']:.2f}" if peer else ""
        lines.append([model_name(ours), number(ours, "tokens_per_s", ",.0f"), number(peer, "tokens_per_s", ",.0f"), speed_up,
                      number(ours, "peak_gib", ".1f"), number(peer, "peak_gib", ".1f")])
    return table(["what", "cyfa, tokens/s", f"{PEER}, tokens/s", "speed-up", "peak, GiB", f"{PEER}, GiB"], lines)


def context_table(rows):
    others = [r for r in rows if r["op"] not in ("cyclic_flow", "copy") and "ms" in r]
    lines = []
    for row in (r for r in others if r["pass"] == "forward"):
        same = lambda r: (r["op"], r["B"], r["T"]) == (row["op"], row["B"], row["T"])  # noqa: E731
        back = next((r for r in others if r["pass"] == "backward" and same(r)), None)
        lines.append([row["op"], row["impl"], f"B{row['B']} T{row['T']}", f"{row['ms']:.3f}",
                      *([f"{back['ms']:.3f}", f"{back['peak_gib']:.2f}"] if back else ["", ""])])
    return table(["operator", "from", "shape", "forward, ms", "backward, ms", "peak, GiB"], lines)


def error_table(errors):
    names = list(next(iter(errors.values()))["cyfa"])
    lines = []
    for tokens, of in errors.items():
        for impl, label in (("cyfa", "cyfa"), ("fla", PEER)):
            lines.append([f"{label}, T = {tokens[1:]}", *(f"{of[impl][name]:.4f}" for name in names)])
    ceiling = lambda name: f"{LIMITS[name]:.4f}" if name in LIMITS else ".010, .020" if name == "ddelta" else ""  # noqa: E731
    lines.append(["limit", *map(ceiling, names)])
    return table(["", *names], lines)


def plots(rows):
    """The pictures: for each, the rows to draw and the options of `cyfa show curves`."""
    passes = [r for r in rows if r["op"] == "cyclic_flow" and r.get("pass") in ("forward", "backward")]
    plain = [r for r in passes if "sequences" not in r and "ms" in r]
    time = [{"T": r["T"], "ms": r["ms"], "pass": r["pass"], "impl": r["impl"]}
            for which in ("backward", "forward") for impl in ("cyfa", "fla") for r in plain if (r["impl"], r["pass"]) == (impl, which)]
    ratio = [{"T": ours["T"], "speed-up": peer["ms"] / ours["ms"], "pass": which, "impl": ""}
             for which in ("backward", "forward") for ours, peer in pairs(rows, which) if peer and "sequences" not in ours]
    return {
        "docs/images/bench_time.svg": ("Time of cyclic_flow: 65,536 tokens, 4 heads, bf16", "ms", time),
        "docs/images/bench_ratio.svg": ("Speed-up of cyclic_flow over flash-linear-attention 0.6.0", "speed-up", ratio),
    }


def drawn(title, y, rows):
    """What the picture's <desc> holds, as `cyfa show curves` writes it."""
    lines = {}
    for row in rows:
        lines.setdefault(" ".join(filter(None, (row["impl"], row["pass"]))), []).append([row["T"], row[y]])
    return {"title": title, "x": X_LABEL, "y": y, "lines": [{"name": n, "points": sorted(p, key=lambda q: q[0])} for n, p in lines.items()]}


def stale_picture(path, title, y, rows):
    """Whether the picture is missing or shows other data. Its lines are compared, not its bytes, which depend on Cairo's version."""
    if not path.exists():
        return True
    found = re.search(r"<desc>(.*?)</desc>", path.read_text(), re.DOTALL)
    return found is None or json.loads(html.unescape(found[1])) != drawn(title, y, rows)


def draw(program, path, title, y, rows):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(rows, file)
        file.flush()
        subprocess.run([program, "show", "curves", file.name, "--x", "T", "--y", y, "--color", "impl", "--dash", "pass", "--log-x",
                        "--from-zero", "--title", title, "--x-label", X_LABEL, "-o", path], check=True, stdout=subprocess.DEVNULL)


def page(path, report):
    rows, others, models = (select(report["rows"]) for select in (of_layer, of_other_sizes, of_models))
    clocks = ", ".join(f"{name} {value}" for name, value in report["clocks"].items())
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    lines = [
        "# Benchmarks on a GPU", "",
        f"<!-- Written by scripts/benchmarks_doc.py from bench/results/{path.name}; edit those, not this page. -->", "",
        *wrapped(f"{report['gpu']}, {report['date']}, commit {report['commit']}; {versions}; clocks: {clocks or 'unknown'}. "
                 f"A copy of 1 GiB runs at {report['copy_tb_s']:.2f} TB/s."), "",
        *wrapped("`make gpu-bench` repeats the measurements. Both implementations run in one process on the same inputs, after the peer's "
                 "autotuning; the peer is flash-linear-attention (FLA). Before each call the L2 cache is flushed. Times are medians of GPU "
                 "time with the host running ahead. Unless noted: H = 4, K = V = 256, M = 128 (a layer of the 400M model), bf16."), "",
        *wrapped("The floor is a lower bound of the time: every tensor read and written once, or the matrix products of 64-token chunks at "
                 "790 TFLOP/s, whichever takes longer. The target is the project's own goal for the shape."), "",
    ]
    if report.get("notes"):
        lines += [*wrapped("Notes of this run: " + report["notes"]), ""]
    lines += [
        "## The operator", "", *operator_table(rows), "",
        *wrapped("The peak counts inputs, results and everything in between; backward rows cover forward and backward together."), "",
        "![Time over sequence length](images/bench_time.svg)", "", "![Speed-up over the peer](images/bench_ratio.svg)", "",
        "## The decode step", "", *step_table(rows), "",
        *wrapped("States are fp32; a step reads and writes them once. \"Copy\" copies as many bytes. Alone: one launch between two events, "
                 "of which about 3 us are launch overhead. Back to back: a CUDA graph of steps, like the layers of a model, each on its "
                 "own states, so that none are in the L2 cache. The share compares back-to-back steps with the bandwidth of the 1 GiB "
                 "copy."), "",
    ]
    if models:
        lines += ["## Whole models", "", *models_table(models), ""]
    if others:
        lines += [
            "## Other sizes", "",
            *wrapped(f"B{others[0]['B']} T{others[0]['T']}; all layers are as wide as the 400M model's. The kernels have head widths of "
                     "64, 128 and 256 with 128 slots, and 256 with 256 slots; other sizes are zero-padded ([support.md](support.md))."), "",
            *sizes_table(others), "",
        ]
    if report["errors"]:
        lines += [
            "## Errors", "",
            *wrapped("Relative L2 error against the fp64 reference on the same bf16 inputs. The limit of ddelta is .010 at T = 512 and "
                     ".020 at T = 1,024."), "",
            *error_table(report["errors"]), "",
        ]
    if any(r["op"] not in ("cyclic_flow", "copy") for r in rows):
        lines += [
            "## Other methods, for context", "", *context_table(rows), "",
            *wrapped("gsa: 128 slots of 256 + 256; kda: a 256 x 256 state per head; sdpa: causal softmax attention, 16 heads of 64."), "",
        ]
    return "\n".join(lines)


def headline(report):
    """The table of README.md: ours, the peer's, and by how much ours is better."""
    rows = of_layer(report["rows"])
    lines = []

    def add(what, ours, theirs, form, higher=False):
        if theirs is None:
            lines.append([what, form(ours), "", ""])
        else:
            lines.append([what, form(ours), form(theirs), f"{ours / theirs if higher else theirs / ours:.1f}x"])

    value = lambda row, name: row[name] if row else None  # noqa: E731
    for B, T in HEADLINE_SHAPES:
        for which in ("forward", "backward"):
            for ours, peer in pairs(rows, which):
                if (ours["B"], ours["T"]) == (B, T) and "sequences" not in ours:
                    add(f"operator, {which}, B{B} T{T}", ours["ms"], value(peer, "ms"), lambda x: f"{x:.3f} ms")
    for ours, peer in pairs(rows, "backward"):
        if (ours["B"], ours["T"]) == HEADLINE_SHAPES[0] and "sequences" not in ours:
            what = f"operator, peak memory of both passes, {shape_name(ours)}"
            add(what, ours["peak_gib"], value(peer, "peak_gib"), lambda x: f"{x:.2f} GiB")
    for ours, peer in pairs(rows, "step"):
        if ours["B"] in HEADLINE_STEPS and ours.get("in_a_row_ms"):
            add(f"operator, decode step, batch {ours['B']}", ours["in_a_row_ms"], value(peer, "in_a_row_ms"), lambda x: f"{x * 1e3:.1f} us")
    for ours, peer in model_pairs(of_models(report["rows"])):
        if ours["op"] == "decode" and ours["B"] not in HEADLINE_STEPS:
            continue
        add(model_name(ours), ours["tokens_per_s"], value(peer, "tokens_per_s"), lambda x: f"{x:,.0f} tokens/s", higher=True)
        if ours.get("peak_gib"):
            add(model_name(ours) + ": peak memory", ours["peak_gib"], value(peer, "peak_gib"), lambda x: f"{x:.1f} GiB")
    worst = lambda impl, gradients: max(  # noqa: E731
        (error for of in report["errors"].values() for name, error in of[impl].items() if (name != "o") == gradients), default=None)
    if report["errors"]:
        add("operator, error of the output", worst("cyfa", False), worst("fla", False), lambda x: f"{x:.4f}")
        add("operator, largest error of a gradient", worst("cyfa", True), worst("fla", True), lambda x: f"{x:.4f}")
    return "\n".join([
        *table(["", "cyfa", f"flash-linear-attention {report['versions'].get('fla', '')}".strip(), "better by"], lines), "",
        *wrapped(f"{report['gpu']}, {report['date']}, bf16. The operator is one layer of the 400M model (4 heads of 256, 128 slots). "
                 "Errors are relative L2 against an fp64 reference, the worst of "
                 f"{' and '.join('T = ' + tokens[1:] for tokens in report['errors'])}. "
                 "[docs/benchmarks.md](docs/benchmarks.md) has all rows and the method."),
    ])


def readme(report):
    begin, end = "<!-- headline: scripts/benchmarks_doc.py -->\n", "\n<!-- end of headline -->"
    text = (ROOT / "README.md").read_text()
    return text[: text.index(begin) + len(begin)] + headline(report) + text[text.index(end) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is stale")
    parser.add_argument("--program", default=ROOT / "build/cyfa", type=pathlib.Path, help="the cyfa program, which draws the pictures")
    a = parser.parse_args()
    path = newest()
    report = json.loads(path.read_text())
    files = {"docs/benchmarks.md": page(path, report), "README.md": readme(report)}
    pictures = plots(of_layer(report["rows"]))
    stale = [name for name, text in files.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    stale += [name for name, picture in pictures.items() if stale_picture(ROOT / name, *picture)]
    if a.check:
        if stale:
            sys.exit(f"benchmarks_doc: stale, differs from bench/results: {', '.join(stale)}; run `make benchmarks-doc`")
        return
    if not a.program.exists():
        sys.exit(f"benchmarks_doc: {a.program} does not exist; build it with `make build`, or name another with --program")
    for name, text in files.items():
        (ROOT / name).write_text(text)
    for name, picture in pictures.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        draw(a.program, ROOT / name, *picture)
    print("wrote " + ", ".join([*files, *pictures]))


if __name__ == "__main__":
    main()
