#!/usr/bin/env python3
"""Tests `cyfa experiment` from outside, on models of a few thousand parameters. Usage: experiment_test.py PROGRAM [unittest arguments]"""

import json
import os
import signal
import subprocess
import time
import unittest

from harness import PROGRAM, ROOT, CliTest, run

CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 1, "head_dim": 16, "num_slots": 8,
          "vocab_size": 258, "intermediate_size": 16, "bos_token_id": 256, "eos_token_id": 257, "initializer_range": 0.1}
TEXT = """
title = "Two clocks"
question = "Which clock?"
reference = "token"
[train]
context = 32
[small]
rates = [1e-3, 3e-3]
seeds = [1, 2, 3]
train = { steps = 24, batch = 4, warmup = 1 }
measures = { length = 4, sequences = 2 }
[[variant]]
name = "token"
config = "tiny"
[[variant]]
name = "constant"
config = "tiny"
set = { clock = "constant" }
"""
RECALL = """
title = "Recall"
question = "How much?"
kind = "mqar"
[train]
weight_decay = 0.1
[small]
rates = [3e-3]
seeds = [1, 2]
[small.mqar]
vocab_size = 64
train = [[16, 2, 64], [24, 3, 40]]
test = [[16, 2, 20], [24, 4, 10]]
batch = 32
epochs = 3
[[variant]]
name = "token"
config = "few"
"""
VOLATILE = ("seconds", "training_seconds", "tokens_per_s", "date", "jobs")


class ExperimentTest(CliTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipes").mkdir()
        (self.folder / "tiny.json").write_text(json.dumps(CONFIG))
        (self.folder / "few.json").write_text(json.dumps({**CONFIG, "bos_token_id": 1, "eos_token_id": 2}))
        self.text, self.recall = self.recipe("text", TEXT), self.recipe("recall", RECALL)
        self.data = self.folder / "data"
        self.data.mkdir()
        for name, count in (("train", 400), ("valid", 200)):
            file = self.folder / f"{name}.txt"
            file.write_text("".join(f"{name} {i}: the square of {i} is {i * i}\n" for i in range(count)))
            self.check(run("prepare", self.data / name, file, "-q"), 0)

    def recipe(self, name, text):
        path = self.folder / "recipes" / f"{name}.toml"
        path.write_text(text)
        return path

    def arguments(self, recipe, out, *more):
        return ["experiment", recipe, "--data", self.data, "--out", self.folder / out, "--threads", "1", *more]

    def runs(self, out, name):
        stored = json.loads((self.folder / out / name / "runs.json").read_text())
        found = {}
        for one in stored["runs"]:
            result = {key: value for key, value in one["result"].items() if key not in VOLATILE}
            found[json.dumps(one["key"], sort_keys=True)] = result
        return found

    def test_text_resumed_and_several_at_a_time(self):
        whole = run(*self.arguments(self.text, "whole"))
        self.check(whole, 0)
        self.assertIn("2 variants, 2 learning rates, 3 seeds: 8 runs, 0 finished before", whole.stdout)
        self.assertIn("[8/8]", whole.stderr)
        expected = self.runs("whole", "text")
        self.assertEqual(len(expected), 8)
        for result in expected.values():
            self.assertEqual(result["steps"], 24)
            self.assertEqual(result["tokens"], 24 * 4 * 32)
            self.assertEqual([point[0] for point in result["by_position"]], [16, 32, 48, 64, 80, 96, 112, 128])
            self.assertEqual([point[0] for point in result["curve"]], list(range(1, 25)))
        report = (self.folder / "whole/text/report.md").read_text()
        for words in ("# Two clocks", "## Results", "| token |", "| constant |", "8 of 8 finished", "to 128", "## Learning rates"):
            self.assertIn(words, report)
        self.assertFalse((self.folder / "whole/text/runs").exists())
        for picture in ("training.svg", "length.svg"):
            self.assertIn("<svg", (self.folder / "whole/text" / picture).read_text()[:200])

        # Stopped by a signal after the first run has finished, then killed, then finished by two processes at a time.
        recipe = self.folder / "recipes/text.toml"
        command = [PROGRAM, *map(str, self.arguments(recipe, "cut"))]
        for kill in (signal.SIGINT, signal.SIGKILL):
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
                for line in process.stderr:
                    if line.startswith("["):
                        break
                process.send_signal(kill)
                process.communicate()
            self.assertEqual(process.returncode, 3 if kill == signal.SIGINT else -signal.SIGKILL)
        self.wait_for_workers()
        before = len(self.runs("cut", "text"))
        self.assertTrue(2 <= before < 8, before)
        self.check(run(*self.arguments(self.text, "cut", "--jobs", "2")), 0)
        self.assertEqual(self.runs("cut", "text"), expected)
        again = run(*self.arguments(self.text, "cut"))
        self.check(again, 0)
        self.assertIn("8 finished before", again.stdout)
        self.assertNotIn("[8/8]", again.stderr)

        # The report from the stored runs alone: no data, and the settings of before.
        first = (self.folder / "cut/text/report.md").read_text()
        (self.folder / "cut/text/report.md").unlink()
        self.check(run("experiment", self.text, "--out", self.folder / "cut", "--report"), 0)
        self.assertEqual((self.folder / "cut/text/report.md").read_text(), first)

    def wait_for_workers(self):
        """The worker of a killed program ends by itself once it has something to say."""
        for _ in range(200):
            lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
            if not any("--as-worker" in line and PROGRAM in line for line in lines.splitlines()):
                break
            time.sleep(0.05)

    def test_recall(self):
        self.check(run(*self.arguments(self.recall, "out")), 0)
        for result in self.runs("out", "recall").values():
            self.assertEqual(result["epochs"], 3)
            self.assertEqual(result["tokens"], 3 * (64 * 16 + 40 * 24))
            self.assertEqual([size[:2] for size in result["by_size"]], [[16, 2], [24, 4]])
            mean = (20 * result["by_size"][0][2] + 10 * result["by_size"][1][2]) / 30
            self.assertAlmostEqual(result["accuracy"], mean, places=5)
        report = (self.folder / "out/recall/report.md").read_text()
        self.assertIn("## Preliminary", report)
        self.assertIn("4 pairs in 24", report)

    def test_needles_with_the_models_of_other_runs_and_with_given_ones(self):
        plan = 'needles = { tasks = ["niah_single_1", "niah_multikey_1"], lengths = [1024, 1100], samples = 2 }'
        text = TEXT.replace("[small]", f'[small]\n{plan}').replace("seeds = [1, 2, 3]", "seeds = [1, 2]")
        needles = self.recipe("needles", 'kind = "needles"\n' + text)
        plain = self.recipe("plain", text.replace(plan, ""))
        values = ["rates=1e-3", "only=token"]
        # By itself: it trains, looks for needles, and drops the models. Of another experiment that has kept them it takes them.
        alone = run(*self.arguments(needles, "alone", "--set", *values))
        self.check(alone, 0)
        self.assertIn("4 runs, 0 finished before", alone.stdout)
        self.assertIn("seed 2, needles: at most", alone.stderr)
        self.assertFalse((self.folder / "alone/needles/runs").exists())
        self.check(run(*self.arguments(plain, "shared", "--keep", "--set", *values)), 0)
        kept = sorted((self.folder / "shared/plain/runs").iterdir())
        shared = run(*self.arguments(needles, "shared", "--set", *values))
        self.check(shared, 0)
        self.assertIn("4 runs, 2 finished before", shared.stdout)
        self.assertEqual(sorted((self.folder / "shared/plain/runs").iterdir()), kept)
        found = [self.runs(out, "needles") for out in ("alone", "shared")]
        self.assertEqual(set(found[0]), set(found[1]))
        for key in (key for key in found[0] if json.loads(key)["kind"] == "needles"):
            rows = found[0][key]["needles"]
            self.assertEqual([row["length"] for row in rows["niah_single_1"]], [1024, 1100])
            self.assertEqual(rows, found[1][key]["needles"])
            self.assertEqual((found[0][key]["tokens"], found[1][key]["tokens"]), (0, 0))  # of training, which runs before it have made
        report = (self.folder / "alone/needles/report.md").read_text()
        for words in ("**No model finds needles.**", "## The hidden value beside another one", "lies within 50 ± 69.3", "## The models",
                      "| niah_multikey_1 | token (2 of 3 seeds) |", "(needles.svg)"):
            self.assertIn(words, report)
        for picture in ("needles.svg", "preference.svg"):
            self.assertIn("<svg", (self.folder / "alone/needles" / picture).read_text()[:200])
        # Without the models, and with a worker that trains them again: the same figures.
        stored = self.folder / "alone/needles/runs.json"
        content = json.loads(stored.read_text())
        content["runs"] = [one for one in content["runs"] if one["key"]["kind"] == "text"]
        stored.write_text(json.dumps(content))
        self.check(run(*self.arguments(needles, "alone")), 0)
        again = self.runs("alone", "needles")
        for key, result in found[0].items():
            self.assertEqual(again[key].get("needles"), result.get("needles"))
        # A checkpoint that is given, by a name; then the report without it.
        model = self.folder / "model"
        self.check(run("init", self.folder / "tiny.json", model), 0)
        config = model / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer": "bytes"}))
        given = ["experiment", needles, "--out", self.folder / "given", "--threads", "1"]
        self.check(run(*given, "--models", f"mine={model}"), 0)
        report = (self.folder / "given/needles/report.md").read_text()
        self.assertIn("| model mine |", report)
        self.assertNotIn("learning rates", report)
        model.rename(self.folder / "elsewhere")
        self.check(run(*given, "--report"), 0)
        self.assertEqual((self.folder / "given/needles/report.md").read_text(), report)
        back = run(*given, "--models", "", "--data", self.data, "--plan")
        self.assertIn("2 variants, 2 learning rates, 2 seeds: 10 runs", back.stdout)
        self.check_error(run("experiment", plain, "--models", self.folder / "elsewhere"), "experiments with needles")
        self.check_error(run(*given, "--models", f"a={self.folder}/elsewhere", f"a={self.folder}/elsewhere"), "different name")
        self.check_error(run(*given, "--models", "nowhere"), "nowhere")
        self.check_error(run(*given, "--set", "lengths="), "at least one")

    def test_a_limit_of_time_stops_with_a_checkpoint(self):
        result = run(*self.arguments(self.text, "out", "--minutes", "0.08", "--set", "steps=100000", "rates=1e-3", "only=token"))
        self.check(result, 3)
        self.assertIn("the time is up", result.stderr)
        (folder,) = (self.folder / "out/text/runs").iterdir()
        self.assertTrue(list((folder / "checkpoints").iterdir()))
        self.assertIn("not complete", (self.folder / "out/text/report.md").read_text())

    def test_a_run_that_diverges_is_a_result(self):
        values = ["rates=1e9", "clip=0", "warmup=0", "only=token", "seeds=1", "steps=30"]
        self.check(run(*self.arguments(self.text, "out", "--set", *values)), 0)
        (result,) = self.runs("out", "text").values()
        self.assertRegex(result["failed"], "^step [0-9]+: ")
        self.assertIn("No variant has tried", (self.folder / "out/text/report.md").read_text())

    def test_kept_models_can_be_used(self):
        self.check(run(*self.arguments(self.text, "out", "--keep", "--set", "rates=1e-3", "seeds=1", "only=token")), 0)
        (folder,) = (self.folder / "out/text/runs").iterdir()
        self.check(run("generate", folder, "-p", "valid", "-n", "3", "--tokenizer", "bytes"), 0)

    def test_errors(self):
        self.check_error(run("experiment"), "the name of an experiment is missing")
        self.check_error(run("experiment", "mixer"), "did you mean mixers")
        self.check_error(run("experiment", self.text, "--out", self.folder / "out"), "--data is missing")
        self.check_error(run(*self.arguments(self.text, "out", "--scale", "paper")), "has no scale")
        self.check_error(run(*self.arguments(self.text, "out", "--set", "stepz=3")), "did you mean steps")
        self.check_error(run("experiment", self.text, "--data", self.folder, "--out", self.folder / "out"), "train")
        bad = self.recipe("bad", TEXT.replace('clock = "constant"', 'clock = "cuckoo"'))
        self.check_error(run(*self.arguments(bad, "out")), "bad.toml", "clock")
        small = self.folder / "small"
        small.mkdir()
        (self.folder / "short.txt").write_text("short. " * 14)
        self.check(run("prepare", small / "valid", self.folder / "short.txt", "-q"), 0)
        (small / "train").symlink_to(self.data / "train")
        failed = run("experiment", self.text, "--data", small, "--out", self.folder / "out", "--threads", "1")
        self.check_error(failed, "token, rate 0.001, seed 1", "wanted more than the 128 of one sequence")

    def test_list_and_plan(self):
        listed = run("experiment", "--list")
        self.check(listed, 0)
        names = [line.split()[0] for line in listed.stdout.splitlines()]
        self.assertEqual(names, sorted(path.stem for path in (ROOT / "configs/experiments").glob("*.toml")))
        for name in ("mixers", "mqar", "ablations", "slots", "clocks", "stop-gradient", "length", "needles", "speed", "decoding"):
            self.assertIn(name, names)
        plan = run(*self.arguments(self.text, "out", "--plan"))
        self.check(plan, 0)
        self.assertIn("8 runs", plan.stdout)
        self.assertFalse((self.folder / "out").exists())

    def test_speed(self):
        recipe = self.recipe("speed", """
title = "Speed"
question = "How fast?"
kind = "speed"
[train]
dtype = "fp32"
[small]
speed = { tokens = 64, lengths = [16, 32], contexts = [0, 40], repeats = 2 }
[[variant]]
name = "token"
config = "tiny"
[[variant]]
name = "op"
op = { op = "scalar_gated_la", H = 2, K = 8, V = 8 }
""")
        self.check(run("experiment", recipe, "--out", self.folder / "out", "--threads", "1"), 0)
        self.assertEqual(len(self.runs("out", "speed")), 6)
        self.assertTrue(all(one["result"]["seconds"] > 0 for one in json.loads((self.folder / "out/speed/runs.json").read_text())["runs"]))
        report = (self.folder / "out/speed/report.md").read_text()
        for words in ("Training throughput", "## Operators, backward", "| op |", "## Decoding one sequence", "## State of a sequence, MB",
                      "| timing | medians of 2 repeats, fp32, on the CPU |"):
            self.assertIn(words, report)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    unittest.main()
