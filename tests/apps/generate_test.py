#!/usr/bin/env python3
"""Tests `cyfa generate`, `bench decode` and `bench train` from outside. Usage: generate_test.py PROGRAM [unittest arguments]"""

import json
import unittest

from harness import ROOT, CliTest, run, Vectors


class Generate(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.model), 0)

    def rows(self, *arguments):
        result = run("generate", self.model, "--json", "-q", *arguments)
        self.check(result, 0)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_text_and_json(self):
        result = run("generate", self.model, "-p", "Hello", "-n", "5")
        self.check(result, 0)
        self.assertTrue(result.stdout.startswith("Hello"))
        self.assertIn("tokens", result.stderr)
        (row,) = self.rows("-p", "Hello", "-n", "5")
        self.assertEqual((len(row["ids"]), row["prompt_tokens"], row["finish"]), (5, 6, "length"))

    def test_a_batch_is_its_prompts(self):
        texts = ["a", "a much longer prompt than the first", "", "Grüße"]
        common = ["-n", "12", "-t", "0.9", "--top-k", "40", "--seed", "3", "--ignore-eos"]
        together = self.rows(*common, *[word for text in texts for word in ("-p", text)])
        for row, text in zip(together, texts):
            self.assertEqual(self.rows(*common, "-p", text)[0]["ids"], row["ids"])
        lines = self.folder / "lines"
        lines.write_text("\n".join(texts[:2]) + "\n")
        self.assertEqual([row["ids"] for row in self.rows(*common, "--prompt-lines", lines)], [row["ids"] for row in together[:2]])

    def test_states(self):
        state = self.folder / "state"
        whole = self.rows("-p", "abc", "-n", "12", "--ignore-eos")[0]["ids"]
        first = self.rows("-p", "abc", "-n", "5", "--ignore-eos", "--save-state", state)[0]["ids"]
        (rest,) = self.rows("-n", "7", "--ignore-eos", "--load-state", state)
        self.assertEqual(first + rest["ids"], whole)
        self.assertEqual((rest["prompt_tokens"], rest["cached_tokens"]), (0, 9))
        self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.folder / "other", "--seed", "1"), 0)
        self.check_error(run("generate", self.folder / "other", "--load-state", state), "another model")
        state.write_bytes(state.read_bytes()[:-3])
        self.check_error(run("generate", self.model, "--load-state", state), "state")
        self.check_error(run("generate", self.model, "-p", "a", "-p", "b", "--save-state", state), "one prompt")
        self.check_error(run("generate", self.model, "-n", "1", "--save-state", self.folder / "absent/state"), "absent")

    def test_odd_prompts(self):
        bad = self.folder / "bad"
        bad.write_bytes(bytes(range(256)) * 20)  # longer than the context, and no UTF-8
        result = run("generate", self.model, "--prompt-file", bad, "-n", "3")
        self.check(result, 0)
        self.assertIn("was trained on sequences of 2048", result.stderr)
        self.assertEqual(self.rows("--prompt-file", bad, "-n", "1")[0]["prompt_tokens"], 5121)
        self.check_error(run("generate", self.model, "--no-bos"), "no tokens")
        self.check_error(run("generate", self.model, "--prompt-file", self.folder / "absent"), "absent")
        self.assertEqual(len(self.rows("-n", "4", "--ignore-eos")[0]["ids"]), 4)

    def test_bad_options(self):
        for words in (["-t", "-1"], ["--top-p", "0"], ["--min-p", "2"], ["--repetition-penalty", "0"], ["-n", "-3"],
                      ["--tokenizer", "absent.model"], ["--dtype", "int4"]):
            self.check_error(run("generate", self.model, "-p", "x", *words))
        self.check_error(run("generate", self.folder / "absent"), "absent")
        (self.model / "model.safetensors").write_bytes(b"\x10")
        self.check_error(run("generate", self.model, "-p", "x"), "model.safetensors")

    def test_memory_in_half_precision(self):
        result = run("generate", self.model, "-p", "ab", "-n", "4", "-q", "--bf16-state", "--save-state", self.folder / "state")
        self.check(result, 0)
        self.check(run("generate", self.model, "-p", "c", "-n", "2", "-q", "--load-state", self.folder / "state"), 0)
        text = self.folder / "text.txt"
        text.write_text("some words, read token by token")
        result = run("bench", "state", self.model, text, "--json", "-")
        self.check(result, 0)
        row = json.loads(result.stdout)[0]
        self.assertLess(abs(row["nats_bf16"] - row["nats_fp32"]), 0.05)
        self.check_error(run("bench", "state", self.model, self.folder / "absent"), "absent")

    def test_stop(self):
        (row,) = self.rows("-p", "abc", "-n", "40", "-t", "1", "--ignore-eos")
        seen = next((c for c in row["text"] if c.isascii() and c.isprintable()), None)
        if seen:
            (stopped,) = self.rows("-p", "abc", "-n", "40", "-t", "1", "--ignore-eos", "--stop", seen)
            self.assertEqual((stopped["finish"], stopped["text"]), ("stop", row["text"][: row["text"].index(seen)]))

    def test_bench(self):
        for dtype, limit in (("fp32", 1e-4), ("bf16", 5e-2)):
            rows = json.loads(run("bench", "decode", self.model, "--B", "1", "3", "--repeats", "2", "--dtype", dtype, "--json").stdout)
            self.assertEqual([row["B"] for row in rows], [1, 3])
            for row in rows:
                self.assertLess(row["check_rel_l2"]["logits"], limit)
                self.assertEqual(row["repeats"], 2)
                self.assertTrue(row["machine"])
        self.assertIn("check ", run("bench", "decode", self.model, "--B", "1", "--repeats", "1").stdout)
        (row,) = json.loads(run("bench", "load", self.model, "--repeats", "2", "--json", "-").stdout)
        self.assertGreater(row["ratio_to_reading"], 0)

    def test_bench_decode_refuses_a_model_that_fails_its_check(self):
        weights = Vectors(self.model / "model.safetensors")
        name = "model.norm.weight"
        weights.set_floats(name, [float("nan")] * len(weights.floats(name)))
        weights.write(self.model / "model.safetensors")
        result = run("bench", "decode", self.model, "--B", "1", "--repeats", "1", "--dtype", "fp32", "--json", self.folder / "rows.json")
        self.check(result, 1)
        self.assertIn("nothing was timed", result.stderr)
        self.assertNotIn("tokens/s", result.stdout)
        self.assertFalse((self.folder / "rows.json").exists())

    def test_bench_train(self):
        config = ROOT / "configs/cyfa-bytes-2m.json"
        for words in ([], ["--dtype", "bf16"], ["--B", "4", "--accumulate", "2", "--recompute"]):
            result = run("bench", "train", config, "--T", "64", "--repeats", "2", *words, "--json")
            self.check(result, 0)
            (row,) = json.loads(result.stdout)
            self.assertEqual((row["repeats"], row["T"]), (2, 64))
            self.assertLess(row["check_rel_l2"]["loss"], 1e-3 if "bf16" in words else 1e-5)
            self.assertTrue(0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"])
        result = run("bench", "train", config, "--T", "16", "--B", "1", "--repeats", "0")
        self.check(result, 0)
        self.assertIn("check ", result.stdout)
        self.assertIn("tokens/s", result.stdout)


if __name__ == "__main__":
    unittest.main()
