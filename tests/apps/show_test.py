#!/usr/bin/env python3
"""Tests `cyfa show` and the drawn documents from outside. Usage: show_test.py PROGRAM [unittest arguments]"""

import html
import json
import pathlib
import re
import struct
import subprocess
import sys
import unittest

from harness import PROGRAM, ROOT, CliTest, run


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n"), data[:8]
    return struct.unpack(">II", data[16:24])


def description(path):
    """What an SVG says about itself: its data."""
    return json.loads(html.unescape(re.search(r"<desc>(.*?)</desc>", path.read_text(), re.DOTALL)[1]))


class Show(CliTest):
    def metrics(self, name, offset):
        folder = self.folder / name
        folder.mkdir()
        rows = [{"step": i, "loss": offset + 3 / i, "grad_norm": 1.0} for i in range(1, 101)]
        rows[-1]["eval_loss"] = offset
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    def test_clock_in_both_formats(self):
        for name in ("clock.png", "clock.svg"):
            self.check(run("show", "clock", "--tokens", "20", "--slots", "3", "-o", self.folder / name), 0)
        width, height = png_size(self.folder / "clock.png")
        self.assertIn(f'viewBox="0 0 {width // 2} {height // 2}"', (self.folder / "clock.svg").read_text()[:400])
        self.check_error(run("show", "clock", "-o", self.folder / "clock.jpg"), "clock.jpg", ".png or .svg")
        self.check_error(run("show", "clock", "-o", self.folder / "absent" / "clock.png"), "absent")

    def test_loss_of_several_runs(self):
        a, b = self.metrics("a", 1.5), self.metrics("b", 2.5)
        result = run("show", "loss", a, b, "-o", self.folder / "loss.png")
        self.check(result, 0)
        self.assertRegex(result.stdout, r"b +100 +2\.5300 +2\.5000")
        self.assertGreater(png_size(self.folder / "loss.png")[0], 1000)
        self.check(run("show", "loss", a / "metrics.jsonl"), 0)
        self.check_error(run("show", "loss", self.folder / "absent"), "absent", "cyfa train")
        (b / "metrics.jsonl").write_text("{}\n")
        self.check_error(run("show", "loss", b), "metrics.jsonl", "loss")

    def test_curves_from_rows(self):
        run_folder = self.metrics("a", 1.0)
        out = self.folder / "curves.svg"
        self.check(run("show", "curves", run_folder / "metrics.jsonl", "--x", "step", "--y", "grad_norm", "-o", out), 0)
        self.assertEqual(len(description(out)["lines"][0]["points"]), 100)
        rows = [{"T": t, "ms": t / k, "impl": f"i{k}", "pass": p} for k in (1, 2) for p in ("forward", "backward") for t in (4096, 1024)]
        path = self.folder / "rows.json"
        path.write_text(json.dumps(rows))
        arguments = ["show", "curves", path, "--x", "T", "--y", "ms", "--color", "impl", "--dash", "pass", "--log-x", "-o", out]
        self.check(run(*arguments, "--title", "a < b"), 0)
        found = description(out)
        self.assertEqual(found["title"], "a < b")
        self.assertEqual([line["name"] for line in found["lines"]], ["i1 forward", "i1 backward", "i2 forward", "i2 backward"])
        self.assertEqual(found["lines"][2]["points"], [[1024, 512], [4096, 2048]])
        self.check_error(run(*arguments[:5], "--y", "absent", "-o", out), "absent", "rows.json")
        path.write_text("[1, 2")
        self.check_error(run(*arguments), "rows.json")
        path.write_text('{"T": 1}\n{"T"\n')
        self.check_error(run(*arguments), "line 2")

    def test_the_pictures_of_the_benchmarks_can_be_drawn_again(self):
        """A stale picture is found by its data; drawing gives pictures that pass the check."""
        check = [sys.executable, ROOT / "scripts/benchmarks_doc.py", "--check"]
        subprocess.run(check, check=True)
        source = (ROOT / "scripts/benchmarks_doc.py").read_text()
        for word in ("<svg", "<polyline", "<text"):
            self.assertNotIn(word, source)
        sys.path.insert(0, str(ROOT / "scripts"))
        import benchmarks_doc

        report = json.loads(benchmarks_doc.newest().read_text())
        for name, picture in benchmarks_doc.plots(benchmarks_doc.of_layer(report["rows"])).items():
            out = self.folder / pathlib.Path(name).name
            benchmarks_doc.draw(PROGRAM, out, *picture)
            self.assertFalse(benchmarks_doc.stale_picture(out, *picture))
            title, y, rows = picture
            changed = [{**row, y: row[y] * 2} for row in rows]
            self.assertTrue(benchmarks_doc.stale_picture(out, title, y, changed))


class Stages(CliTest):
    """scripts/stage.sh: one line per stage; the log is shown only if the stage fails."""

    def stage(self, command):
        script = f'. scripts/stage.sh; stage "a stage" {self.folder}/a.log {command}'
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True)

    def test_a_stage_is_one_line(self):
        done = self.stage("bash -c 'echo many; echo words >&2'")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^== a stage, \d+ s\n$")
        self.assertEqual(done.stderr, "")
        self.assertIn("many\nwords\n", (self.folder / "a.log").read_text())

    def test_a_failure_shows_the_log(self):
        failed = self.stage("bash -c 'echo why it failed; exit 7'")
        self.assertEqual(failed.returncode, 7)
        self.assertIn("FAILED", failed.stdout)
        self.assertIn("why it failed", failed.stdout)


if __name__ == "__main__":
    unittest.main()
