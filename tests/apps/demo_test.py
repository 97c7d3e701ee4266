#!/usr/bin/env python3
"""Tests `cyfa demo` from outside: output, exit statuses, files. Usage: demo_test.py PROGRAM [unittest arguments]"""

import unittest

from harness import CliTest, run


class Demo(CliTest):
    def test_recall(self):
        result = run("demo", "recall", "--pairs", "4", "--png", self.folder / "recall.png", timeout=600)
        self.check(result, 0)
        self.assertIn("clock increments", result.stdout)
        self.assertTrue((self.folder / "recall.png").exists())


if __name__ == "__main__":
    unittest.main()
