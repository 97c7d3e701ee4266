#!/usr/bin/env python3
"""Compares the speed of `cyfa prepare` with the SentencePiece Python package in one process, on the same .jsonl file in alternating rounds,
and measures cyfa's peak memory at two input sizes.

The text is the corpus of the folder shared/ (scripts/shared_folder.py) if it exists, otherwise the project's own sources and documents,
repeated. The Python side does what a script would do: json.loads, encode, write a numpy array. Both must give the same tokens before
anything is timed. The tokenizer is build/tokenizer.model (make tokenizer), or the one given.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))

from shared_folder import shared_folder  # noqa: E402: found by the line above

CORPUS = shared_folder() / "corpus/train.jsonl.zst"


def sentencepiece():
    try:
        import sentencepiece
    except ImportError:
        print("installing sentencepiece", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "sentencepiece"], check=True)
        import sentencepiece
    return sentencepiece


def texts():
    if CORPUS.exists() and shutil.which("zstd"):
        with subprocess.Popen(["zstd", "-dcq", "--long=27", str(CORPUS)], stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                yield json.loads(line)["text"]
            return
    files = [path for folder in ("cyfa", "apps", "tests", "docs") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cc", ".cu", ".md", ".py")]
    number = 0
    while True:  # the number makes every copy different
        for path in files:
            yield f"{number}\n{path.read_text()}"
        number += 1


def write_lines(path, megabytes):
    size = 0
    with path.open("w") as file:
        for text in texts():
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
            if size >= megabytes * 1e6:
                break
    return size


def python_prepare(processor, source, target):
    with open(source, encoding="utf-8") as lines, open(target, "wb") as out:
        for line in lines:
            ids = processor.encode(json.loads(line)["text"])
            out.write(numpy.array([processor.bos_id(), *ids], dtype=numpy.uint16).tobytes())


def cyfa_prepare(source, folder, tokenizer, threads):
    """Wall-clock seconds of the process, and its peak memory in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(ROOT / "build/cyfa"), "prepare", str(folder), str(source), "--tokenizer", str(tokenizer),
               "--threads", str(threads), "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss * 1024


def cyfa_tokens(folder):
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    return b"".join((folder / shard["file"]).read_bytes() for shard in shards)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "build/tokenizer.model", help="default: build/tokenizer.model")
    parser.add_argument("--megabytes", type=float, default=30, help="size of the timed text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of cyfa (default: %(default)s)")
    parser.add_argument("--json", default="", help="write the row as JSON to this file")
    arguments = parser.parse_args()
    if not arguments.tokenizer.exists():
        sys.exit(f"{arguments.tokenizer} does not exist; `make tokenizer` downloads it")
    processor = sentencepiece().SentencePieceProcessor(model_file=str(arguments.tokenizer))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines, large = folder / "lines.jsonl", folder / "large.jsonl"
        size = write_lines(lines, arguments.megabytes)

        python_prepare(processor, lines, folder / "python.tokens")
        cyfa_prepare(lines, folder / "out", arguments.tokenizer, arguments.threads)
        if cyfa_tokens(folder / "out") != (folder / "python.tokens").read_bytes():
            sys.exit("cyfa prepare and the Python package give different tokens")
        print(f"check: {len(cyfa_tokens(folder / 'out')) // 2} tokens of {size * 1e-6:.1f} MB agree")

        python, cyfa, one = [], [], []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            python_prepare(processor, lines, folder / "python.tokens")
            python.append(time.perf_counter() - start)
            cyfa.append(cyfa_prepare(lines, folder / "out", arguments.tokenizer, arguments.threads)[0])
            one.append(cyfa_prepare(lines, folder / "out", arguments.tokenizer, 1)[0])
        small = cyfa_prepare(lines, folder / "out", arguments.tokenizer, arguments.threads)[1]
        grown = write_lines(large, 8 * arguments.megabytes)
        big = cyfa_prepare(large, folder / "out", arguments.tokenizer, arguments.threads)[1]

    runs = {"python": python, "cyfa": cyfa, "cyfa, 1 thread": one}
    rate = {name: size * 1e-6 / statistics.median(seconds) for name, seconds in runs.items()}
    row = {"impl": "cyfa prepare", "threads": arguments.threads, "text_mb": size * 1e-6, "mb_per_second": rate["cyfa"],
           "mb_per_second_1_thread": rate["cyfa, 1 thread"], "python_mb_per_second": rate["python"], "ratio": rate["cyfa"] / rate["python"],
           "peak_mb": small * 1e-6, "peak_mb_large": big * 1e-6, "large_text_mb": grown * 1e-6}
    for name, value in rate.items():
        print(f"{name:16} {value:7.2f} MB/s")
    print(f"ratio to the Python package: {row['ratio']:.2f} (cyfa {min(cyfa):.2f} .. {max(cyfa):.2f} s, "
          f"Python {min(python):.2f} .. {max(python):.2f} s)")
    print(f"peak memory: {small * 1e-6:.0f} MB for {size * 1e-6:.0f} MB of text, {big * 1e-6:.0f} MB for {grown * 1e-6:.0f} MB")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps([row]) + "\n")


if __name__ == "__main__":
    main()
