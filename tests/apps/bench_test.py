#!/usr/bin/env python3
"""Tests `cyfa bench op` and `cyfa show clock` from outside. Usage: bench_test.py PROGRAM [unittest arguments]"""

import json
import signal
import struct
import subprocess
import time
import unittest

from harness import PROGRAM, TINY, CliTest, run


class Bench(CliTest):
    def test_rows(self):
        for op, passes in (("cyclic_flow", ["forward", "backward"]), ("scalar_gated_la", ["forward", "backward"]), ("step", ["step"])):
            result = run("bench", "op", "--op", op, "--B", "2", *TINY, "--json", "-")
            self.check(result, 0)
            rows = json.loads(result.stdout)
            self.assertEqual([row["pass"] for row in rows], passes)
            for row in rows:
                self.assertEqual((row["impl"], row["op"], row["B"], row["K"], row["dtype"]), ("cyfa", op, 2, 16, "fp32"))
                self.assertTrue(0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"])
                for key in ("commit", "date", "machine", "versions", "threads", "check_rel_l2"):
                    self.assertIn(key, row)

    def test_text_and_file(self):
        path = self.folder / "rows.json"
        result = run("bench", "op", "--pass", "forward", "--dtype", "bf16", "--chunk", "16", "--segment-chunks", "2", *TINY, "--json", path)
        self.check(result, 0)
        self.assertIn("GFLOP/s", result.stdout)
        self.assertEqual(len(json.loads(path.read_text())), 1)
        self.check_error(run("bench", "op", *TINY, "--json", self.folder / "absent" / "rows.json"), "absent")

    def test_operations_at_the_model_shape(self):
        """27.3 MFLOP forward and 60 backward for a chunk of 64 tokens of one head, K = V = 256, M = 128."""
        rows = json.loads(run("bench", "op", "--T", "64", "--H", "1", "--repeats", "1", "--json", "-").stdout)
        self.assertAlmostEqual(rows[0]["gflop"], 0.0273, delta=0.0001)
        self.assertAlmostEqual(rows[1]["gflop"], 0.060, delta=0.0005)

    def test_an_interrupt_leaves_no_file(self):
        process = subprocess.Popen([PROGRAM, "bench", "op", "--T", "4096", "--repeats", "1000", "--json", str(self.folder / "rows.json")],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=20), -signal.SIGINT)
        self.assertEqual(list(self.folder.iterdir()), [])


class Show(CliTest):
    def test_clock(self):
        path = self.folder / "clock.png"
        result = run("show", "clock", "-o", path)
        self.check(result, 0)
        self.assertIn("The clock", result.stdout)
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(data[-8:-4], b"IEND")
        width, height = struct.unpack(">II", data[16:24])
        self.assertGreater(min(width, height), 500)
        self.check(run("show", "clock", "--tokens", "20", "--slots", "3", "-o", path), 0)
        self.check_error(run("show", "clock", "-o", self.folder / "absent" / "clock.png"), "absent")


if __name__ == "__main__":
    unittest.main()
