#!/usr/bin/env python3
"""Mutates every kind of file that the program reads, with a fixed seed. Whatever a file holds, the program ends within seconds, with little
memory, by itself and not by a signal. Usage: fuzz_test.py PROGRAM [unittest arguments]"""

import json
import random
import shutil
import unittest

from harness import MODELS, run
from hostile import HostileTest, run_bounded, sentencepiece, zstd

ROUNDS = 12  # mutations of each kind of file
NUMBERS = [b"0", b"-1", b"7", b"65536", b"1e9", b"16777216", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"1e999"]
WORDS = NUMBERS + [b"null", b"true", b"[]", b"{}", b'"', b",", b":", b"]", b"}", b"[[[[", b"\xff", b"\0", b"\n", b'"a": ', b"../x"]


def mutated(data, draw):
    """The bytes with one to three changes: of bytes, words, numbers, order and length."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 1:
            data[at : at + draw.randrange(8)] = draw.choice(WORDS)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            end = at + draw.randrange(40)
            data[at:at] = data[at:end] * draw.choice((1, 1, 100))
        elif kind == 4:
            del data[at : at + draw.randrange(1, 30)]
        else:  # a number for another; the kind of change that gets furthest
            digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                begin = end = draw.choice(digits)
                while end < len(data) and 48 <= data[end] <= 57:
                    end += 1
                data[begin:end] = draw.choice(NUMBERS)
    return bytes(data)


class Fuzz(HostileTest):
    def survives(self, path, *arguments, before=None, rounds=ROUNDS):
        """Runs the program on mutations of the file at `path`. before() restores what a run has changed."""
        good = path.read_bytes()
        draw = random.Random(f"{self.id().rsplit('.', 1)[1]} {path.name}")
        for i in range(rounds):
            if before:
                before()
            path.write_bytes(mutated(good, draw))
            with self.subTest(file=path.name, mutation=i):
                result = run_bounded(*arguments)
                self.assertIn(result.returncode, (0, 1, 2), f"{path.read_bytes()[:2000]}\n{result.stderr[-2000:]}")
                self.assertNotRegex(result.stderr, "out of memory|not enough memory|bad_alloc")
                if result.returncode == 2:
                    self.assertIn("cyfa: error: ", result.stderr)
        path.write_bytes(good)

    def test_configs(self):
        model = self.folder / "checked"
        shutil.copytree(MODELS[0], model)
        self.survives(model / "config.json", "verify", "model", model)
        self.survives(model / "config.json", "models", "--describe", model)

    def test_expected_results(self):
        model = self.folder / "checked"
        shutil.copytree(MODELS[0], model)
        self.survives(model / "expected.safetensors", "verify", "model", model)

    def test_weights(self):
        model = self.model()
        self.survives(model / "model.safetensors", "generate", model, "-n", "3")
        (model / "model.safetensors").rename(model / "all.safetensors")
        names = [p["name"] for p in json.loads(run("models", "--describe", model).stdout)[0]["parameters"]]
        index = model / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": {name: "all.safetensors" for name in names}}))
        self.check(run("generate", model, "-n", "3"), 0)
        self.survives(index, "generate", model, "-n", "3")

    def test_states(self):
        model = self.model()
        state = self.folder / "state"
        self.check(run("generate", model, "-p", "some text", "-n", "3", "--save-state", state), 0)
        self.check(run("generate", model, "-n", "3", "--load-state", state), 0)
        self.survives(state, "generate", model, "-n", "3", "--load-state", state)

    def test_data_folders(self):
        data = self.data()
        arguments = ["train", self.folder / "run", f"model={self.model()}/config.json", f"data={data}", "steps=1", "batch=1", "context=8"]

        def before():
            shutil.rmtree(self.folder / "run", ignore_errors=True)

        for name in ("manifest.json", "shard-00000.tokens", "shard-00000.documents"):
            self.survives(data / name, *arguments, before=before, rounds=8)

    def test_unfinished_data_folders(self):
        arguments = self.unfinished()
        folder, copy = arguments[0], self.folder / "copy"
        folder.rename(copy)

        def before():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(copy, folder)

        before()
        self.survives(folder / "progress.json", "prepare", *arguments, before=before)

    def test_runs(self):
        folder, keys = self.training()
        copy = self.folder / "copy"
        shutil.copytree(folder, copy)
        checkpoint = max((folder / "checkpoints").iterdir()).relative_to(folder)

        def before():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)

        resume = ["train", "--resume", folder, *keys]
        own = [checkpoint / name for name in ("step.json", "config.json", "optimizer.safetensors")]
        for name in ("recipe.toml", "metrics.jsonl", *own):
            self.survives(folder / name, *resume, before=before, rounds=6)

    def test_tokenizers(self):
        text = self.folder / "in.txt"
        text.write_text("the cat and the mat, and öther things")
        path = self.folder / "tokenizer.model"

        def before():
            shutil.rmtree(self.folder / "out", ignore_errors=True)

        for model_type in (1, 2):
            path.write_bytes(sentencepiece(model_type))
            before()
            self.check(run("prepare", self.folder / "out", text, "--tokenizer", path), 0)
            self.survives(path, "prepare", self.folder / "out", text, "--tokenizer", path, before=before)

    def test_texts(self):
        lines = "".join(json.dumps({"id": i, "text": f"document {i} ü", "more": [1, {"a": None}]}) + "\n" for i in range(20)).encode()

        def before():
            shutil.rmtree(self.folder / "out", ignore_errors=True)

        packed = zstd(lines[:300], lines[300:700], lines[700:])
        for name, data in (("a.jsonl", lines), ("a.jsonl.zst", packed), ("a.txt.zst", packed)):
            path = self.folder / name
            path.write_bytes(data)
            before()
            self.check(run("prepare", self.folder / "out", path), 0)
            self.survives(path, "prepare", self.folder / "out", path, before=before)


if __name__ == "__main__":
    unittest.main()
