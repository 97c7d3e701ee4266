#!/usr/bin/env python3
"""Files that attack the program: nested without end, asking for any amount of time or memory, cut short while they are read, damaged in the
middle. The program ends with words and exit status 2. Usage: hostile_files_test.py PROGRAM [unittest arguments]"""

import json
import os
import shutil
import socket
import subprocess
import time
import unittest

from harness import MODELS, PROGRAM, ROOT, VECTORS, Vectors, run
from hostile import CONFIG, SECONDS, HostileTest, field, run_bounded, sentencepiece, zstd

DEEP = "[" * 110000
DEEP_OBJECTS = '{"a":' * 110000


class DeepFiles(HostileTest):
    """JSON and TOML that is nested 110,000 deep; a parser that recurses, or a tree that is destroyed by recursion, overflows the stack."""

    def test_configs(self):
        path = self.folder / "config.json"
        for text in (DEEP, DEEP_OBJECTS, '{"model_type": ' + DEEP, '{"model_type": "gla", "attn": ' + DEEP):
            path.write_text(text)
            self.check_error(run_bounded("models", path), "config.json: is nested more than 16 deep")
            self.check_error(run_bounded("init", path, self.folder / "out"), "config.json: is nested")

    def test_indices_of_shards(self):
        model = self.model()
        (model / "model.safetensors").rename(model / "all.safetensors")
        for text in (DEEP, '{"weight_map": ' + DEEP_OBJECTS):
            (model / "model.safetensors.index.json").write_text(text)
            self.check_error(run_bounded("generate", model), "index.json: is nested more than 8 deep")

    def test_data_folders(self):
        data = self.data()
        (data / "manifest.json").write_text(DEEP)
        self.check_error(run_bounded("train", self.folder / "run", f"model={self.model()}/config.json", f"data={data}", "steps=1"),
                         "manifest.json: is nested more than 8 deep")
        arguments = self.unfinished()
        (arguments[0] / "progress.json").write_text(DEEP_OBJECTS)
        self.check_error(run_bounded("prepare", *arguments), "progress.json: is damaged: is nested more than 8 deep", "remove the folder")

    def test_runs(self):
        folder, keys = self.training()
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(DEEP + "\n")
        unknown = folder / "checkpoints/step-00000009"
        unknown.mkdir()
        (unknown / "step.json").write_text(DEEP)
        self.assertIn(run_bounded("train", "--resume", folder, *keys).returncode, (0, 2))
        (folder / "recipe.toml").write_text("a" + ".a" * 30000 + " = 1\n")
        self.check_error(run_bounded("train", "--resume", folder), "recipe.toml: line 1 has more than 200 dots")
        (folder / "recipe.toml").write_text("steps = " + "[" * 30000)
        self.check_error(run_bounded("train", "--resume", folder), "recipe.toml")
        (folder / "recipe.toml").write_text("# " + "x" * 70000)
        self.check_error(run_bounded("train", "--resume", folder), "recipe.toml: has 70002 bytes; a recipe has at most 65536")

    def test_lines_of_text(self):
        path = self.folder / "in.jsonl"
        path.write_text('{"text": "good"}\n' + DEEP + '\n{"text": "x", "more": ' + DEEP + "\n")
        result = run_bounded("prepare", self.folder / "out", path)
        self.check(result, 0)
        self.assertIn("2 damaged", result.stdout)


class LargeFiles(HostileTest):
    """Small files that ask for much, and large ones: refused before the memory is taken, within seconds."""

    def refused(self, result, *words):
        self.check_error(result, *words)
        self.assertNotIn("memory", result.stderr)

    def test_configs(self):
        cases = {
            "the parameter": {"hidden_size": 1 << 24, "num_heads": 1 << 20, "head_dim": 1 << 20},
            "more than 2^": {"hidden_size": 1 << 20, "vocab_size": 1 << 24},
            "num_slots is": {"num_slots": 1 << 20},
            "the state of a sequence": {"model_type": "mistral", "num_attention_heads": 2, "num_key_value_heads": 2,
                                        "sliding_window": 1 << 28},
            "rho * num_slots": {"model_type": "blurry_window_attention", "num_slots": 1 << 12, "rho": 1 << 12},
            "more than the model has layers": {"attn": [{"layers": [], "num_heads": 1}] * 9000},
            "holds more than 65536 values": {"layer_types": ["gla"] * 70000},
            "and 1990 more": {f"key{i}": i for i in range(2000)},
            "num_hidden_layers": {"num_hidden_layers": 1e300},
            "vocab_size": {"vocab_size": -(1 << 63)},
        }
        path = self.folder / "config.json"
        for words, keys in cases.items():
            with self.subTest(words):
                config = {**CONFIG, **keys}
                if config["model_type"] == "mistral":
                    config = {key: config[key] for key in config if key not in ("num_heads", "num_slots")}
                path.write_text(json.dumps(config))
                self.refused(run_bounded("models", path), "config.json: ", words)
        path.write_text(json.dumps(CONFIG)[:-1] + ', "hidden_size": 17}')
        self.refused(run_bounded("models", path), 'the key "hidden_size" occurs twice')
        path.write_bytes(b'{"a": "' + b"x" * (2 << 20))
        self.refused(run_bounded("models", path), "has 2097159 bytes; a config has at most 1048576")

    def test_many_layers(self):
        path = self.folder / "config.json"
        path.write_text(json.dumps({**CONFIG, "num_hidden_layers": 4096}))
        self.check(run_bounded("models", path), 0)

    def test_a_large_index_of_shards(self):
        model = self.model()
        (model / "model.safetensors").rename(model / "all.safetensors")
        index = model / "model.safetensors.index.json"
        index.write_text('{"weight_map": {' + ", ".join(f'"{i}": "all.safetensors"' for i in range(530000)) + "}}")
        self.refused(run_bounded("generate", model), "index.json: holds more than 524288 values")
        index.write_text('{"weight_map": {' + ", ".join(f'"{i}": "all.safetensors"' for i in range(500000)) + "}}")
        self.refused(run_bounded("generate", model), 'weight_map says that "0" is in "all.safetensors", which does not hold it')
        index.write_bytes(b'{"weight_map": {"' + b"x" * (64 << 20))
        self.refused(run_bounded("generate", model), "an index of shards has at most 33554432")

    def test_expected_results_of_an_op(self):
        large = 1 << 40
        cases = {  # tensors of no element, and sizes that ask for a large state
            "q": [[large, 0, 2, 8], [0, large, 2, 8], [1, 0, large, 8], [1, 0, 2, large]],
            "g": [[large, 0, 2]],
            "readout": [[large, 0, 0], [0, large, 2]],
        }
        for name, shapes in cases.items():
            for shape in shapes:
                with self.subTest(name=name, shape=shape):

                    def change(vectors):
                        vectors.tensors[name] = ["F32", shape, b""]

                    vectors = Vectors(VECTORS[0])
                    change(vectors)
                    self.refused(run_bounded("verify", "op", vectors.write(self.folder / "changed.safetensors")), "has no elements")
        # A million empty sequences, and heads and widths that the file does not have to store.
        vectors = Vectors(VECTORS[0])
        vectors.tensors = {"q": ["F32", [4096, 0, 4, 64], b""], "k": ["F32", [4096, 0, 4, 64], b""], "v": ["F32", [4096, 0, 4, 64], b""],
                           "g": ["F32", [4096, 0, 4], b""], "delta": ["F32", [4096, 0, 4], b""], "beta": ["F32", [4096, 0, 4], b""],
                           "readout": ["F32", [4, 31, 31], b"\0" * (4 * 31 * 31 * 4)], "o": ["F32", [4096, 0, 4, 64], b""]}
        self.refused(run_bounded("verify", "op", vectors.write(self.folder / "states.safetensors")), "more than 2^24 numbers")

    def test_expected_results_of_a_model(self):
        model = self.folder / "model"
        shutil.copytree(MODELS[0], model)
        cases = {
            "has no elements": {"input_ids": ["I64", [1 << 40, 0], b""]},
            "input_ids is [1048576, 0]": {"input_ids": ["I64", [1 << 20, 0], b""]},
            "input_ids is [0, 5]": {"input_ids": ["I64", [0, 5], b""]},
            "at most 65536": {"input_ids": ["I32", [1, 1 << 17], b"\0" * (4 << 17)]},
            "logits is [1, 2]": {"logits": ["F32", [1, 2], b"\0" * 8]},
            "greedy is [1, 0]": {"greedy": ["I64", [1, 0], b""]},
            "greedy is [3]": {"greedy": ["I64", [3], b"\0" * 24]},
            "train_ids is [1048576, 0, 1]": {"train_ids": ["I64", [1 << 20, 0, 1], b""]},
        }
        for words, tensors in cases.items():
            with self.subTest(words):
                vectors = Vectors(MODELS[0] / "expected.safetensors")
                vectors.tensors.update(tensors)
                vectors.write(model / "expected.safetensors")
                self.refused(run_bounded("verify", "model", model), "expected.safetensors", words)


class ShrinkingFiles(HostileTest):
    """Files that become shorter while the program has them mapped: an error that names the file, not a signal."""

    def cut_when(self, ready, path, *arguments):
        """Starts the program, truncates the file once ready() is true, and gives the exit status and the standard error."""
        with (self.folder / "stderr").open("w") as stderr:
            process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                end = time.monotonic() + SECONDS
                while not ready():
                    self.assertIsNone(process.poll(), (self.folder / "stderr").read_text())
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
                os.truncate(path, 0)
                status = process.wait(timeout=SECONDS)
            finally:
                process.kill()
        return status, (self.folder / "stderr").read_text()

    def test_weights_while_generating(self):
        model = self.folder / "model"
        self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", model), 0)
        weights = model / "model.safetensors"

        def mapped_and_running():
            for process in os.listdir("/proc"):
                if process.isdigit():
                    try:
                        with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/stat") as stat:
                            if str(weights) in maps.read():
                                return int(stat.read().rsplit(")", 1)[1].split()[11]) > 50  # half a second of processor time
                    except OSError:
                        pass
            return False

        status, stderr = self.cut_when(mapped_and_running, weights, "generate", model, "-p", "a", "-n", 10000000, "--ignore-eos")
        self.assertEqual(status, 2, stderr)
        self.assertIn(f"cyfa: error: {weights}: has become shorter", stderr)

    def test_shards_while_training(self):
        data = self.data(text="all work and no play makes jack a dull boy. " * 4000)
        folder = self.folder / "run"
        keys = [f"model={self.model()}/config.json", f"data={data}", "batch=2", "context=16", "warmup=1", "steps=1000000", "save_every=20"]
        checkpoint = folder / "checkpoints/step-00000020"
        shard = data / "shard-00000.tokens"
        status, stderr = self.cut_when(checkpoint.exists, shard, "train", folder, *keys)
        self.assertEqual(status, 2, stderr)
        self.assertIn(f"cyfa: error: {shard}: has become shorter", stderr)
        whole = [path for path in (folder / "checkpoints").iterdir() if path.name.startswith("step-") and path.name.count(".") == 0]
        self.assertTrue(whole)
        for path in whole:
            self.check(run("generate", path, "-p", "all", "-n", 1, "-q"), 0)


class VerifiedFolders(HostileTest):
    """All folders are checked, whatever one of them is like."""

    def folders(self):
        names = {}
        for name in ("good", "wrong", "odd", "last"):
            names[name] = self.folder / name
            shutil.copytree(MODELS[0], names[name])
        vectors = Vectors(names["wrong"] / "expected.safetensors")
        vectors.set_floats("logits", [value + 1 for value in vectors.floats("logits")])
        vectors.write(names["wrong"] / "expected.safetensors")
        vectors = Vectors(names["odd"] / "expected.safetensors")
        vectors.tensors["greedy"] = ["I64", [1, 0], b""]
        vectors.write(names["odd"] / "expected.safetensors")
        names["absent"] = self.folder / "absent"
        return names

    def test_statuses_and_rows(self):
        names = self.folders()
        result = run("verify", "model", names["absent"], names["good"], names["wrong"], names["odd"], names["last"], "--json")
        self.check(result, 2)
        rows = json.loads(result.stdout)
        self.assertEqual([row["folder"] for row in rows], [str(names[n]) for n in ("absent", "good", "wrong", "odd", "last")])
        self.assertEqual([row["pass"] for row in rows], [False, True, False, False, True])
        self.assertEqual(["error" in row for row in rows], [True, False, False, True, False])
        self.assertEqual([t["name"] for t in rows[3]["tensors"]], ["logits", "logits by steps"])  # finished before the error
        self.assertIn("greedy is [1, 0]", rows[3]["error"])
        self.assertEqual(result.stderr.count("cyfa: error: "), 2)
        text = run("verify", "model", names["odd"], names["good"])
        self.check(text, 2)
        self.assertIn("2 models, 0 failed; 1 could not be checked", text.stdout)
        self.assertEqual(text.stdout.count("logits by steps"), 2)
        self.check(run("verify", "model", names["wrong"], names["good"]), 1)
        self.check(run("verify", "model", names["good"], names["last"]), 0)

    def test_files_of_ops(self):
        vectors = Vectors(VECTORS[0])
        vectors.set_floats("g", [0.5] * len(vectors.floats("g")))
        bad = vectors.write(self.folder / "bad.safetensors")
        result = run("verify", "op", bad, VECTORS[0], "--json")
        self.check(result, 2)
        rows = json.loads(result.stdout)
        self.assertEqual(list(rows[0]), ["file", "error", "pass"])
        self.assertIn("log_alpha", rows[0]["error"])
        self.assertTrue(len(rows) > 1 and all(row["pass"] for row in rows[1:]))


class Inputs(HostileTest):
    """Inputs of `cyfa prepare`."""

    def test_text_before_damage_is_kept(self):
        lines = [json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(40)]
        bad = b"\x06\x00\x00"  # a block of the reserved type
        (self.folder / "in").mkdir()
        (self.folder / "in/a.jsonl.zst").write_bytes(zstd(b"".join(lines[:20]), b"".join(lines[20:30]) + lines[30][:5], last=bad))
        (self.folder / "in/b.jsonl.zst").write_bytes(zstd(b"".join(lines[:7]))[:-3])
        (self.folder / "in/c.txt.zst").write_bytes(zstd(b"text before ", b"the damage", last=bad))
        (self.folder / "in/d.txt").write_bytes(b"after")
        result = run_bounded("prepare", self.folder / "out", self.folder / "in", "--json")
        self.check(result, 0)
        (row,) = json.loads(result.stdout)
        self.assertEqual((row["documents"], row["damaged"]), (30 + 6 + 1 + 1, 3))
        tokens = (self.folder / "out/shard-00000.tokens").read_bytes()[::2]
        for text in (b"document 0", b"document 29", b"text before the damage", b"after"):
            self.assertIn(text, tokens)
        self.assertNotIn(b"document 30", tokens)
        for name in ("a.jsonl.zst: line 31", "b.jsonl.zst: line 7", "c.txt.zst: byte 22 of the text"):
            self.assertIn(name, result.stderr)

    def test_what_is_passed_over_is_said(self):
        top = self.folder / "in"
        (top / "deep").mkdir(parents=True)
        (top / "deep/a.txt").write_text("text")
        (top / "linked.txt").symlink_to(top / "deep/a.txt")
        (top / "loop.txt").symlink_to(top / "loop.txt")
        (top / "circle").symlink_to(top)
        (top / "broken.jsonl").symlink_to(top / "absent")
        (top / "notes.md").write_text("no text")
        (top / ".hidden.txt").write_text("hidden")
        os.mkfifo(top / "pipe.txt")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(top / "s.txt"))
        (top / "binary.txt").write_bytes(b"\x7fELF\x02\x01\x01\x00\x00")
        (top / "utf16.txt").write_text("text", encoding="utf-16")
        result = run_bounded("prepare", self.folder / "out", top, "--json")
        self.check(result, 0)
        (row,) = json.loads(result.stdout)
        self.assertEqual((row["documents"], row["damaged"], row["passed_over"]), (2, 2, 7))
        self.assertEqual(result.stderr.count("has zero bytes"), 2)
        text = run_bounded("prepare", self.folder / "again", top)
        self.check(text, 0)
        line = next(line for line in text.stdout.splitlines() if line.startswith("passed over: 7, "))
        for words in ("loop.txt (a link that leads nowhere)", "circle (a link to a folder)", "broken.jsonl (a link that leads nowhere)",
                      "notes.md (unknown ending)", ".hidden.txt (hidden)", "pipe.txt (not a regular file)", "s.txt (not a regular file)"):
            self.assertIn(words, line)
        for i in range(50):
            (top / f"{i}.md").write_text("x")
        self.assertIn("and 47 more", run_bounded("prepare", self.folder / "many", top).stdout)
        (self.folder / "none").mkdir()
        (self.folder / "none/a.md").write_text("x")
        self.check_error(run_bounded("prepare", self.folder / "nothing", self.folder / "none"), "passed over: ", "a.md (unknown ending)")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_unreadable_inputs(self):
        top = self.folder / "in"
        (top / "closed").mkdir(parents=True)
        (top / "a.txt").write_text("text")
        (top / "b.txt").write_text("text")
        (top / "b.txt").chmod(0)
        (top / "closed").chmod(0)
        self.addCleanup((top / "closed").chmod, 0o700)
        result = run_bounded("prepare", self.folder / "out", top)
        self.check(result, 0)
        self.assertIn("b.txt (Permission denied)", result.stdout)
        self.assertIn("closed (cannot be listed: Permission denied)", result.stdout)
        self.check_error(run_bounded("prepare", self.folder / "strict", top, "--bad", "stop"), "b.txt (Permission denied)")


class Tokenizers(HostileTest):
    def encode(self, model):
        path = self.folder / "tokenizer.model"
        path.write_bytes(model)
        text = self.folder / "in.txt"
        text.write_text("the cat, the “mat” and \ufb01sh")
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        return run_bounded("prepare", self.folder / "out", text, "--tokenizer", path)

    def test_errors_are_words(self):
        self.check(self.encode(sentencepiece()), 0)
        piece = field(1, field(1, b"ab") + field(2, 0.0) + field(3, 6))
        table = b"\x00\x04\x00\x00" + b"\xff\xff\xff\x7f" * 256 + b"x\0"
        cases = {
            "is no protocol buffer": b"not a model",
            "is not a SentencePiece model": b"",
            "the library refuses it": sentencepiece() + piece,
            "(precompiled_charsmap) are inconsistent": sentencepiece(normalizer=field(2, table)),
        }
        for words, model in cases.items():
            with self.subTest(words):
                result = self.encode(model)
                self.check_error(result, "tokenizer.model: ", words)
                self.assertNotRegex(result.stderr, r"\.(cc|h)\(\d+\)|\.(cc|h):\d+")

    def test_large_files(self):
        self.check_error(self.encode(field(1, b"\x0a\x00") * (3 << 20)), "has more than 2097152 pieces")
        path = self.folder / "tokenizer.model"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        self.check_error(run_bounded("prepare", self.folder / "out", self.folder / "in.txt", "--tokenizer", path), "has at most 67108864")


if __name__ == "__main__":
    unittest.main()
