#!/usr/bin/env python3
"""Tests `cyfa plan` from outside. Usage: plan_test.py PROGRAM [unittest arguments]"""

import json
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
