#!/usr/bin/env python3
"""Tests scripts/parity.py on models of a few thousand parameters. Usage: parity_test.py PROGRAM [unittest arguments]"""

import json
import math
import statistics
import subprocess
import sys
import unittest

from harness import PROGRAM, ROOT, CliTest

CONFIGS = sorted((ROOT / "configs" / "parity").glob("*.json"))


class Parity(CliTest):
    def setUp(self):
        super().setUp()
        self.configs = []
        for name in ("gla", "retnet"):
            config = json.loads((ROOT / f"configs/parity/{name}.json").read_text())
            config |= {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 24}
            self.configs.append(self.folder / f"{name}.json")
            self.configs[-1].write_text(json.dumps(config))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(1000)))
        self.out = self.folder / "out"

    def parity(self, *arguments, configs=None):
        command = [sys.executable, ROOT / "scripts/parity.py", *(configs or self.configs), "--program", PROGRAM, "--text", self.text,
                   "--out", self.out, "--steps", 4, "--set", "eval_batches=2", "threads=1", *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)

    def test_table_and_second_start(self):
        first = self.parity("--rates", "1e-3", "3e-3", "--seeds", "1", "2", "3")
        self.check(first, 0)
        self.assertIn("[10/10]", first.stdout)
        result = json.loads((self.out / "parity.json").read_text())
        self.assertEqual([row["config"] for row in result["rows"]], ["gla", "retnet"])
        for row in result["rows"]:
            losses = list(row["held_out_loss_by_seed"].values())
            self.assertEqual(len(set(losses)), 3)  # seeds differ
            self.assertAlmostEqual(row["held_out_loss"], statistics.mean(losses))
            self.assertAlmostEqual(row["spread"], statistics.stdev(losses))
            by_rate = row["tuning_loss_by_rate"]
            self.assertEqual(row["rate"], float(min(by_rate, key=by_rate.get)))
        table = (self.out / "parity.md").read_text()
        self.assertIn(table, first.stdout)
        for word in ("held-out loss", "std over seeds", "nats per byte", "| gla |", "| retnet |"):
            self.assertIn(word, table)
        parts = [(self.out / f"{part}.txt").read_text() for part in ("train", "tune", "held-out")]
        self.assertEqual("".join(parts), self.text.read_text())
        for line in parts[2].splitlines() + parts[1].splitlines():
            self.assertNotIn(line, parts[0].splitlines())

        finished = sorted((self.out / "runs").glob("*.json"))
        self.assertEqual(len(finished), 10)
        finished[0].unlink()  # as if interrupted in this run
        second = self.parity("--rates", "1e-3", "3e-3", "--seeds", "1", "2", "3")
        self.check(second, 0)
        self.assertEqual(second.stdout.count("from an earlier run"), 9)
        self.assertEqual([r["held_out_loss"] for r in json.loads((self.out / "parity.json").read_text())["rows"]],
                         [r["held_out_loss"] for r in result["rows"]])

    def test_no_table_from_fewer_seeds(self):
        result = self.parity("--rates", "1e-3", "--seeds", "1", configs=self.configs[:1])
        self.check(result, 0)
        self.assertIn("no table", result.stdout)
        self.assertFalse((self.out / "parity.md").exists())

    def test_configs_start_with_the_gain_of_the_published_width(self):
        self.assertGreater(len(CONFIGS), 15)
        for path in CONFIGS:
            config = json.loads(path.read_text())
            self.assertAlmostEqual(config["initializer_range"], 0.02 * math.sqrt(1024 / config["hidden_size"]), places=4, msg=path.name)


if __name__ == "__main__":
    unittest.main()
