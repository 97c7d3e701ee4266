#!/usr/bin/env python3
"""Tests `cyfa prepare` from outside: output, exit statuses, files. Usage: prepare_test.py PROGRAM [unittest arguments]"""

import json
import random
import signal
import struct
import subprocess
import time
import unittest

from harness import PROGRAM, CliTest, run


class Prepare(CliTest):
    def lines(self, name="in.jsonl", count=2000):
        random.seed(5)
        path = self.folder / name
        words = ["the", "clock", "moves", "what", "was", "written", "ünder", "slots"]
        with path.open("w") as file:
            for i in range(count):
                file.write(json.dumps({"id": i, "text": " ".join(random.choices(words, k=random.randrange(1, 400)))}) + "\n")
        return path

    def files(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def test_summary_and_json(self):
        path = self.lines(count=50)
        result = run("prepare", self.folder / "out", path)
        self.check(result, 0)
        self.assertRegex(result.stdout, r"out: \d+ tokens, 50 documents, 1 shard\n")
        (row,) = json.loads(run("prepare", self.folder / "again", path, "--end", "--json").stdout)
        manifest = json.loads((self.folder / "again/manifest.json").read_text())
        self.assertEqual(row["tokens"], manifest["tokens"])
        self.assertEqual((row["documents"], row["damaged"], row["resumed_shards"]), (50, 0, 0))
        self.assertEqual(manifest["marks"], {"begin": 256, "end": 257})
        tokens = (self.folder / "again/shard-00000.tokens").read_bytes()
        self.assertEqual(len(tokens), 2 * manifest["tokens"])
        first = json.loads(path.read_text().splitlines()[0])["text"].encode()
        self.assertEqual(struct.unpack(f"<{len(first) + 2}H", tokens[: 2 * len(first) + 4]), (256, *first, 257))

    def test_killed_runs_end_as_whole_ones(self):
        path = self.lines(count=12000)
        words = [path, "--shard-tokens", 200000, "--threads", 2, "--quiet"]
        self.check(run("prepare", self.folder / "whole", *words), 0)
        parts = self.folder / "parts"
        for round, kind in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
            process = subprocess.Popen([PROGRAM, "prepare", str(parts), *map(str, words)], stdout=subprocess.DEVNULL)
            end = time.monotonic() + 60
            while not (parts / f"shard-{4 * round + 3:05}.tokens").exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            process.send_signal(kind)
            process.wait()
        (row,) = json.loads(run("prepare", parts, *words, "--json").stdout)
        self.assertGreaterEqual(row["resumed_shards"], 3)
        self.assertEqual(self.files(parts), self.files(self.folder / "whole"))

    def test_damage(self):
        path = self.lines(count=20)
        path.write_bytes(path.read_bytes() + b'{"text": 3}\n{"other": "x"}\n[1]\n')
        result = run("prepare", self.folder / "out", path)
        self.check(result, 0)
        self.assertIn("in.jsonl: line 21, byte ", result.stderr)
        self.assertIn("left out: 3 damaged", result.stdout)
        self.check_error(run("prepare", self.folder / "strict", path, "--bad", "stop"), "in.jsonl: line 21, byte ")
        self.check_error(run("prepare", self.folder / "strict", path, "--no-begin"), "begin was 256", "another folder")
        self.check(run("prepare", self.folder / "strict", path, "--bad", "skip", "--threads", "1"), 0)
        self.assertEqual(self.files(self.folder / "strict"), self.files(self.folder / "out"))

    def test_bad_options(self):
        path = self.lines(count=3)
        out = self.folder / "out"
        self.check_error(run("prepare", out), "inputs")
        self.check_error(run("prepare", out, self.folder / "absent.txt"), "absent.txt")
        self.check_error(run("prepare", out, path, "--tokenizer", self.folder / "absent.model"), "absent.model")
        self.check_error(run("prepare", out, path, "--bos-id", "300"), "300", "258 tokens")
        self.check_error(run("prepare", out, path, "--shard-tokens", "0"), "--shard-tokens")
        self.check_error(run("prepare", out, path, "--bad", "what"), "--bad")
        self.check_error(run("prepare", out, path, "--text-field", "body"), "hold no text")
        self.assertFalse(out.exists())
        self.check(run("prepare", out, path), 0)
        self.check_error(run("prepare", out, path), "finished")
        self.check_error(run("prepare", self.folder, path), "other files")


if __name__ == "__main__":
    unittest.main()
