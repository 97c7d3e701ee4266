#!/usr/bin/env python3
"""Makes the data of recipes/cyfa-4m.toml: a SentencePiece tokenizer of 4,096 pieces, training tokens and validation tokens.

    scripts/small_data.py build/cyfa CORPUS OUT [--megabytes 80]

CORPUS holds train.jsonl.zst and valid.jsonl.zst, one {"text": ...} a line. OUT gets tokenizer.model, train/ and valid/. Needs the Python
packages sentencepiece and zstandard.
"""

import argparse
import io
import json
import pathlib
import subprocess
import tempfile

import sentencepiece
import zstandard

PIECES = 4096
TOKENIZER_BYTES = 24_000_000  # of text that the tokenizer is trained on


def documents(path, most_bytes):
    """The first documents of a file, about `most_bytes` of text."""
    left = most_bytes
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        for line in io.TextIOWrapper(reader, encoding="utf-8"):
            text = json.loads(line)["text"]
            left -= len(text.encode())
            if left < 0:
                return
            yield text


def train_tokenizer(corpus, out):
    """Merges of pairs (BPE) that leave the text as it is, with bytes for unknown characters."""
    lines = (line for text in documents(corpus / "train.jsonl.zst", TOKENIZER_BYTES) for line in text.split("\n") if line)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=str(out / "tokenizer"),
        vocab_size=PIECES,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=1 << 16,
        num_threads=2,
        minloglevel=1,
    )
    (out / "tokenizer.vocab").unlink()


def prepare(program, out, name, texts, tokenizer):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        subprocess.run([program, "prepare", out / name, path, "--tokenizer", tokenizer], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program cyfa")
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=80, help="text to train on, from the beginning of the corpus")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = options.out / "tokenizer.model"
    if not tokenizer.exists():
        train_tokenizer(options.corpus, options.out)
    prepare(options.program, options.out, "train", documents(options.corpus / "train.jsonl.zst", options.megabytes * 1e6), tokenizer)
    prepare(options.program, options.out, "valid", documents(options.corpus / "valid.jsonl.zst", 1e9), tokenizer)


if __name__ == "__main__":
    main()
