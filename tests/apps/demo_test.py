#!/usr/bin/env python3
"""Tests `cyfa demo` from outside: output, exit statuses, files. Usage: demo_test.py PROGRAM [unittest arguments]"""

import re
import unittest

from harness import CliTest, run


class Demo(CliTest):
    def test_recall(self):
        """The CyFA learns what the window cannot, from the same batches; the example shows both answers."""
        result = run("demo", "recall", "--pairs", "2", "-o", self.folder / "recall.png", timeout=900)
        self.check(result, 0)
        self.assertIn("The window cannot learn it", result.stdout)
        shares = re.search(r"CyFA (\d+\.\d)% correct, window (\d+\.\d)% \(guessing: (\d+\.\d)%\)", result.stdout)
        flow, window, guessing = map(float, shares.groups())
        self.assertGreater(flow, 99)
        self.assertLess(window, 3 * guessing)
        self.assertRegex(result.stdout, r"  CyFA .*  2 of 2\n")
        self.assertRegex(result.stdout, r"  window .*  \d of 2\n")
        self.assertTrue((self.folder / "recall.png").exists())

    def test_a_model_that_has_not_learned_fails_the_check(self):
        result = run("demo", "recall", "--steps", "1", "--pairs", "2", "-o", self.folder / "recall.svg")
        self.check(result, 1)
        self.assertTrue((self.folder / "recall.svg").exists())


if __name__ == "__main__":
    unittest.main()
