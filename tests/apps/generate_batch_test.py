#!/usr/bin/env python3
"""Tests what `cyfa generate` promises about long runs: batches, run folders, saved states, Ctrl-C. Usage: generate_batch_test.py PROGRAM
[unittest arguments]"""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from harness import PROGRAM, ROOT, CliTest, run

CONFIG = ROOT / "configs/cyfa-bytes-2m.json"


class GenerateBatch(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.check(run("init", CONFIG, self.model), 0)

    def rows(self, *arguments):
        result = run("generate", self.model, "--json", "-q", *arguments)
        self.check(result, 0)
        return json.loads(result.stdout)

    def lines(self, content):
        path = self.folder / "lines"
        path.write_bytes(content)
        return path

    def start(self, *arguments):
        command = [PROGRAM, "generate", str(self.model), *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process


class Batches(GenerateBatch):
    def test_any_batch_gives_the_same_texts_in_order(self):
        lines = self.lines(b"".join(b"line %d %s\n" % (i, b"x" * (7 * i % 30)) for i in range(11)))
        common = ["--prompt-lines", lines, "-n", "9", "-t", "1", "--stop", "e", "--ignore-eos"]
        whole = self.rows(*common)
        self.assertEqual([row["prompt"].split()[1] for row in whole], [str(i) for i in range(11)])
        for batch in ("1", "3", "1000"):
            self.assertEqual(self.rows(*common, "--batch", batch), whole)
        result = run("generate", self.model, *common, "--batch", "3", "--no-echo")
        self.check(result, 0)
        self.assertEqual(result.stdout, "".join(f"[{i}] {row['text']}\n" for i, row in enumerate(whole)))
        self.assertIn("batch 3", result.stderr)
        self.check_error(run("generate", self.model, "--batch", "-1"))

    def peak_megabytes(self, prompts):
        lines = self.lines(b"ab\n" * prompts)
        process = self.start("--prompt-lines", lines, "-n", "1", "-q", "--threads", "1", "--json", self.folder / "out.json")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss / 1024

    def test_memory_does_not_grow_with_the_number_of_prompts(self):
        # A sequence's state takes 1 MB.
        self.assertLess(self.peak_megabytes(600), self.peak_megabytes(64) + 150)

    def test_texts_appear_as_they_end(self):
        process = self.start("--prompt-lines", self.lines(b"a\n" * 20000), "-n", "20", "--batch", "1", "-q", "--threads", "1")
        first = process.stdout.readline()
        self.assertTrue(first.startswith(b"[0] a"), first)
        self.assertIsNone(process.poll())
        process.kill()
        process.wait()

    def test_lines(self):
        rows = self.rows("--prompt-lines", self.lines(b"one\r\n\r\n two \nlast\r"), "-n", "0")
        self.assertEqual([row["prompt"] for row in rows], ["one", "", " two ", "last\r"])
        self.check_error(run("generate", self.model, "--prompt-lines", self.lines(b"")), "no lines")
        self.check_error(run("generate", self.model, "--prompt-lines", "-", "--prompt-file", "-"), "standard input")


class RunFolders(GenerateBatch):
    def test_the_newest_checkpoint_of_a_run(self):
        data, training = self.folder / "data", self.folder / "run"
        text = self.folder / "text.txt"
        text.write_text("a few words to learn from. " * 200)
        self.check(run("prepare", data, text), 0)
        self.check(run("train", training, "-q", f"data={data}", f"model={CONFIG}", "steps=2", "save_every=1", "batch=1", "context=32"), 0)
        newest = training / "checkpoints/step-00000002"
        result = run("generate", training, "-p", "a", "-n", "3")
        self.check(result, 0)
        self.assertIn(str(newest), result.stderr)
        self.assertEqual(result.stdout, run("generate", newest, "-p", "a", "-n", "3").stdout)
        self.assertNotIn("note", run("generate", training, "-p", "a", "-n", "1", "-q").stderr)
        for words in (["bench", "decode", training, "--B", "1", "--repeats", "1"], ["doctor", training]):
            result = run(*words)
            self.check(result, 0)
            self.assertIn(str(newest), result.stderr)
        shutil.rmtree(training / "checkpoints")
        self.check_error(run("generate", training), "not saved a checkpoint yet")
        self.assertFalse((training / "checkpoints").exists())


class States(GenerateBatch):
    def test_the_file_is_checked_before_the_text_is_generated(self):
        endless = ["-p", "a", "-n", "1000000000", "--ignore-eos"]
        for path, word in ((self.folder / "absent/state", "absent"), (self.folder, "folder")):
            result = run("generate", self.model, *endless, "--save-state", path, timeout=60)
            self.check_error(result, word)
            self.assertEqual(result.stdout, "")
        self.check_error(run("generate", self.model, *endless, "--json", self.folder / "absent/rows.json", timeout=60), "absent")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model"])

    def test_sampled_texts_go_on(self):
        common = ["-t", "1", "--seed", "5", "--ignore-eos", "--repetition-penalty", "1.2"]
        whole = self.rows("-p", "abc", "-n", "12", *common)[0]["ids"]
        first = self.rows("-p", "abc", "-n", "5", *common, "--save-state", self.folder / "state")[0]["ids"]
        rest = self.rows("-n", "7", *common, "--load-state", self.folder / "state")[0]["ids"]
        self.assertEqual(first + rest, whole)

    def test_ctrl_c_saves_the_state(self):
        state, out = self.folder / "state", self.folder / "rows.json"
        process = self.start("-p", "abc", "-n", "1000000000", "--ignore-eos", "-t", "1", "--save-state", state, "--json", out)
        seen = process.stdout.read(1)
        while len(seen) < 40:
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, errors)
        self.assertIn(b"interrupted", errors)
        (row,) = json.loads(out.read_text())
        self.assertEqual(row["finish"], "interrupted")
        self.assertEqual((seen + rest).decode(), "abc" + row["text"] + "\n")
        count = len(row["ids"])
        (more,) = self.rows("-n", "4", "-t", "1", "--ignore-eos", "--load-state", state)
        self.assertEqual(more["cached_tokens"], 4 + count)
        (whole,) = self.rows("-p", "abc", "-n", str(count + 4), "-t", "1", "--ignore-eos")
        self.assertEqual(row["ids"] + more["ids"], whole["ids"])

    def test_a_second_ctrl_c_ends_at_once(self):
        long = self.folder / "long"
        long.write_bytes(b"some text " * 200000)  # reading it takes minutes
        process = self.start("--prompt-file", long, "--save-state", self.folder / "state", "--no-echo")
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=30), -signal.SIGINT)
        self.assertFalse((self.folder / "state").exists())

    def test_ctrl_c_without_a_state_ends_at_once(self):
        process = self.start("-p", "abc", "-n", "1000000000", "--ignore-eos")
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=30), -signal.SIGINT)


class Help(CliTest):
    def test_examples_and_statuses(self):
        result = run("generate", "--help")
        self.check(result, 0)
        for words in ("--prompt-lines FILE", "RUN", "--save-state STATE", "--load-state STATE", "Ctrl-C", "3 stopped by a signal", "128"):
            self.assertIn(words, result.stdout)


if __name__ == "__main__":
    unittest.main()
