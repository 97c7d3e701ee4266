#!/usr/bin/env python3
"""Tests `cyfa plan` from outside. Usage: plan_test.py PROGRAM [unittest arguments]"""

import json
import pathlib
import unittest

from harness import CliTest, run


class Plan(CliTest):
    def test_the_table_and_the_rows_say_the_same(self):
        request = ("plan", "cyfa-400m", "--gpus", "64", "--context", "32768")  # 16 sequences a step
        result = run(*request)
        self.check(result, 0)
        rows = json.loads(run(*request, "--json").stdout)
        best = rows[0]
        line = next(line for line in result.stdout.splitlines() if line.startswith(best["layout"]))
        self.assertIn(f"{best['tokens_per_s']:.0f}", line)
        self.assertEqual(best["refusal"], "")
        self.assertTrue(any(row["refusal"] for row in rows))
        parts = sum(best[f"{part}_gib"] for part in ("parameters", "gradients", "optimizer", "activations"))
        self.assertAlmostEqual(parts, best["memory_gib"])

    def test_measured_steps_correct_the_time_of_computing(self):
        request = ("plan", "cyfa-400m", "--gpus", "1", "--machine", "h200", "--batch-tokens", "65536")
        before = json.loads(run(*request, "--json").stdout)[0]
        measured = self.folder / "measured.json"
        row = {"op": "train", "model": "cyfa-400m", "dtype": "bf16", "device": "cuda", "B": 32, "T": 2048, "accumulate": 1,
               "tokens_per_s": before["tokens_per_s"] / 2}
        measured.write_text(json.dumps([row, row | {"device": "cpu", "tokens_per_s": 1}, row | {"model": "cyfa-800m"}]))
        after = json.loads(run(*request, "--measured", measured, "--json").stdout)[0]
        self.assertAlmostEqual(after["correction"], 2)
        self.assertAlmostEqual(after["step_ms"], 2 * before["step_ms"])
        results = pathlib.Path(__file__).resolve().parents[2] / "bench/results/2026-11-18-H200-speed.json"
        result = run(*request, "--measured", results)
        self.check(result, 0)
        self.assertIn("by 2 measured steps", result.stdout)
        self.check_error(run("plan", "cyfa-1.4b", "--measured", measured), "no training step of cyfa-1.4b", "cyfa-400m, cyfa-800m",
                         "cyfa bench train")
        self.check_error(run(*request, "--measured", measured, "--mfu", "0.5"), "--mfu")
        measured.write_text("[{}, 3]")
        self.check_error(run(*request, "--measured", measured), "no training step")

    def test_what_does_not_fit_is_said(self):
        result = run("plan", "cyfa-1.4b", "--gpus", "1", "--context", "100000000", "--batch-tokens", "100000000")
        self.check(result, 1)
        self.assertIn("no layout runs", result.stdout)

    def test_errors(self):
        self.check_error(run("plan", "cyfa-400m", "--gpus", "12"), "gpus", "whole nodes of 8")
        self.check_error(run("plan", "cyfa-400m", "--machine", "abacus"), "abacus", "h100, h200")
        self.check_error(run("plan", "no-such-model"), "no-such-model")


if __name__ == "__main__":
    unittest.main()
