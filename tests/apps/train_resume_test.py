#!/usr/bin/env python3
"""Tests how runs of `cyfa train` begin, go on and go back, from outside. Usage: train_resume_test.py PROGRAM [unittest arguments]"""

import json
import os
import shutil
import signal
import subprocess
import unittest

from harness import PROGRAM, CliTest, run

MOST_SEED = 2**64 - 1


class TrainResume(CliTest):
    def setUp(self):
        super().setUp()
        self.data = self.prepared("data", "all work and no play makes jack a dull boy. " * 400)
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps({"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2,
                                           "head_dim": 16, "num_slots": 16, "vocab_size": 258, "intermediate_size": 64,
                                           "bos_token_id": 256, "eos_token_id": 257}))
        self.keys = [f"model={self.config}", f"data={self.data}", "steps=12", "batch=4", "context=32", "warmup=2", "rate=3e-3",
                     "log_every=1"]
        self.run_folder = self.folder / "run"

    def prepared(self, name, words):
        text = self.folder / f"{name}.txt"
        text.write_text(words)
        self.check(run("prepare", self.folder / name, text, "-q"), 0)
        return self.folder / name

    def train(self, *arguments):
        result = run("train", *arguments)
        self.check(result, 0)
        return result.stdout

    def steps(self, folder=None):
        names = [path.name for path in ((folder or self.run_folder) / "checkpoints").iterdir()]
        return sorted(int(name[5:]) for name in names if ".part-" not in name)

    def rows(self):
        return [json.loads(line) for line in (self.run_folder / "metrics.jsonl").read_text().splitlines()]

    def cut(self, *keys, at="step      5", kill=signal.SIGKILL):
        """A run that gets a signal once it has printed a line."""
        command = [PROGRAM, "train", str(self.run_folder), *self.keys, *keys]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
            for line in process.stdout:
                if line.startswith(at):
                    process.send_signal(kill)
                    break
            out, error = process.communicate()
        return process.returncode, out, error

    def test_data_that_has_changed_is_refused(self):
        shard = self.data / "shard-00000.tokens"
        kept = shard.read_bytes()
        shard.write_bytes(kept[:2] * (len(kept) // 2))
        self.check_error(run("train", self.run_folder, *self.keys), shard.name, "checksum")
        self.assertFalse(self.run_folder.exists())
        self.assertIn("not compared", self.train(self.run_folder, *self.keys, "check_data=none"))
        self.check_error(run("train", "--resume", self.run_folder, "steps=14", "check_data=auto"), shard.name)
        shard.write_bytes(kept)
        self.assertIn("all tokens have their checksums", self.train("--resume", self.run_folder, "steps=14", "check_data=auto"))

    def test_other_data_under_the_same_path_is_refused(self):
        self.train(self.run_folder, *self.keys)
        manifest = (self.run_folder / "manifest.json").read_bytes()
        moved = self.folder / "moved"
        self.data.rename(moved)
        self.prepared("data", "something else altogether, at some length. " * 400)
        self.check_error(run("train", "--resume", self.run_folder, "steps=14"), "other data", "model=")
        self.assertEqual((self.run_folder / "manifest.json").read_bytes(), manifest)
        self.train("--resume", self.run_folder, "steps=14", f"data={moved}")  # the same data elsewhere
        self.assertEqual(json.loads((self.run_folder / "manifest.json").read_text())["data"], json.loads(manifest)["data"])

    def test_values_that_make_another_run_are_refused(self):
        self.train(self.run_folder, *self.keys)
        recipe = (self.run_folder / "recipe.toml").read_bytes()
        for change in ("seed=7", "batch=8", "context=16", "reset_documents=true", "skip_read=false", "model=other.json"):
            self.check_error(run("train", "--resume", self.run_folder, "steps=14", change), change.split("=")[0], "cannot become",
                             "step-00000012")
        self.check_error(run("train", "--resume", self.run_folder, "steps=5"), "steps")
        self.assertEqual((self.run_folder / "recipe.toml").read_bytes(), recipe)
        out = self.train("--resume", self.run_folder, "steps=14", "rate=1e-3", "seed=42", "accumulate=2")
        self.assertIn("rate = 0.001, was 0.003", out)
        self.assertIn("learning rate of step 13", out)
        self.assertIn("no longer bit for bit", out)
        self.assertNotIn("seed", out)

    def test_a_diverged_run_goes_back(self):
        out = run("train", self.run_folder, *self.keys, "steps=40", "save_every=4", "rate=1e-3", "schedule=constant", timeout=600)
        self.check(out, 0)
        bad = run("train", "--resume", self.run_folder, "steps=200", "rate=3e4", "clip=0", timeout=600)
        words = bad.stdout + bad.stderr
        self.assertIn("--resume --from 40", words)
        self.assertIn(40, self.steps())
        self.check_error(run("train", "--resume", self.run_folder, "--from", "39"), "40")
        self.check_error(run("train", self.folder / "new", *self.keys, "--from", "40"), "--resume")
        out = self.train("--resume", self.run_folder, "--from", "40", "steps=44", "rate=1e-3", "clip=1")
        self.assertLess(self.rows()[-1]["loss"], self.rows()[0]["loss"])
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 45)))
        if "aside-1" in out:
            self.assertTrue((self.run_folder / "aside-1/metrics.jsonl").exists())
        self.assertEqual(self.steps()[-1], 44)

    def test_threads_are_those_of_the_beginning(self):
        self.train(self.run_folder, *self.keys, "steps=6", "threads=1")
        self.assertEqual(json.loads((self.run_folder / "manifest.json").read_text())["threads"], 1)
        recipe = self.run_folder / "recipe.toml"
        recipe.write_text(recipe.read_text().replace("threads = 1 ", "threads = 0 "))
        self.train("--resume", self.run_folder, "steps=8")
        self.assertEqual(json.loads((self.run_folder / "manifest.json").read_text())["resumed"][0]["threads"], 1)
        self.assertIn("no longer bit for bit", self.train("--resume", self.run_folder, "steps=10", "threads=2"))
        manifest = json.loads((self.run_folder / "manifest.json").read_text())
        (self.run_folder / "manifest.json").write_text(json.dumps(manifest | {"threads": 4000}))
        self.assertIn("as many as this machine has", self.train("--resume", self.run_folder, "steps=12", "threads=0"))

    def test_a_folder_has_one_trainer(self):
        process = subprocess.Popen([PROGRAM, "train", str(self.run_folder), *self.keys, "steps=1000000"], stdout=subprocess.PIPE,
                                   encoding="utf-8")
        with process:
            for line in process.stdout:
                if line.startswith("step      1"):
                    break
            self.check_error(run("train", "--resume", self.run_folder), "another `cyfa train`")
            process.kill()

    def test_a_refused_start_leaves_nothing(self):
        for wrong in ("context=1000000", "engine=none", f"validation={self.folder / 'absent'}", "data=\udcff",
                      f"model={self.folder / 'no.json'}"):
            command = [os.fsencode(part) for part in (PROGRAM, "train", str(self.run_folder), *self.keys, wrong)]
            result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
            self.check_error(result)
            self.assertFalse(self.run_folder.exists(), wrong)
        self.train(self.run_folder, *self.keys)

    def test_paths_and_seeds_come_back_from_the_recipe(self):
        odd = self.folder / 'a "b"\n\t\x1b ä'
        self.data.rename(odd)
        self.train(self.run_folder, *self.keys, f"data={odd}", f"seed={MOST_SEED}")
        self.assertIn("done", self.train("--resume", self.run_folder, "steps=14"))
        self.assertEqual(json.loads((self.run_folder / "manifest.json").read_text())["seed"], MOST_SEED)
        for seed in (MOST_SEED + 1, -1, "1e3"):
            self.check_error(run("train", self.folder / "other", *self.keys, f"seed={seed}"), "seed")
            self.check_error(run("init", self.config, self.folder / "m", "--seed", seed), "seed")
        toml = self.folder / "r.toml"
        toml.write_text(f"seed = {MOST_SEED}\n")
        self.check_error(run("train", self.folder / "other", "-r", toml, *self.keys), "r.toml")

    def test_a_kill_before_the_first_checkpoint(self):
        self.cut("steps=1000000")
        last = self.rows()[-1]["step"]
        (self.run_folder / "checkpoints/step-00000003.part-1").mkdir()
        (self.run_folder / ".cyfa-1.tmp").write_text("x")
        self.train("--resume", self.run_folder, f"steps={last + 2}")
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, last + 3)))
        self.assertEqual([path.name for path in (self.run_folder / "checkpoints").iterdir()], [f"step-{last + 2:08}"])
        self.assertFalse((self.run_folder / ".cyfa-1.tmp").exists())

    def test_checkpoints_by_the_clock_lose_nothing(self):
        self.train(self.folder / "whole", *self.keys)
        self.cut("save_minutes=1e-6", at="saved step 5")
        self.assertGreaterEqual(self.steps()[-1], 5)
        before = self.rows()[4]["seconds"]
        self.train("--resume", self.run_folder)
        name = "checkpoints/step-00000012/model.safetensors"
        self.assertEqual((self.folder / "whole" / name).read_bytes(), (self.run_folder / name).read_bytes())
        self.assertGreater(self.rows()[-1]["seconds"], before)
        self.assertEqual(sorted(row["seconds"] for row in self.rows()), [row["seconds"] for row in self.rows()])

    def test_an_interrupt_saves_and_says_so(self):
        status, out, error = self.cut("steps=1000000", kill=signal.SIGINT)
        self.assertEqual(status, 3)
        self.assertIn("stopping after this step", error)
        self.assertIn("--resume", out)
        last = self.steps()[-1]
        self.assertEqual(self.rows()[-1]["step"], last)
        self.assertIn(f"resuming after step {last}", self.train("--resume", self.run_folder, f"steps={last + 1}"))

    def test_leftovers_of_dead_writers_are_removed(self):
        dead, alive = self.folder / "m.part-999999999", self.folder / f"m.part-{os.getpid()}"
        for folder in (dead, alive):
            folder.mkdir()
        self.check(run("init", self.config, self.folder / "m"), 0)
        self.assertFalse(dead.exists())
        self.assertTrue(alive.exists())

    def test_a_checkpoint_is_whole(self):
        out = self.train(self.run_folder, *self.keys)
        self.assertIn("TFLOP/s measured", out)
        for share in (int(line.split("MFU ")[1].split("%")[0]) for line in out.splitlines() if line.startswith("step ")):
            self.assertLessEqual(share, 100)
        checkpoint = self.run_folder / "checkpoints/step-00000012"
        card = (checkpoint / "README.md").read_text()
        self.assertTrue(card.startswith("---\n"))
        self.assertIn(json.loads((self.run_folder / "manifest.json").read_text())["data"], card)
        self.check(run("generate", checkpoint, "-p", "all", "-n", "3", "-q"), 0)  # the config does not name bytes, the checkpoint does

    def test_a_continuation_reads_on(self):
        self.train(self.run_folder, *self.keys)
        checkpoint = self.run_folder / "checkpoints/step-00000012"
        read = json.loads((checkpoint / "step.json").read_text())["read"]
        self.assertEqual([(r["context"], r["windows"]) for r in read], [(32, 48)])
        keys = [f"model={checkpoint}", f"data={self.data}", "steps=4", "batch=2", "context=128", "log_every=1"]
        self.assertIn(f"it has read {48 * 32} tokens", self.train(self.folder / "on", *keys))
        step = json.loads((self.folder / "on/checkpoints/step-00000004/step.json").read_text())
        self.assertEqual([r["context"] for r in step["read"]], [32, 128])
        self.assertEqual(step["read"][0], read[0])
        self.train("--resume", self.folder / "on", "steps=6")
        shutil.rmtree(self.run_folder)
        anew = json.loads((self.folder / "on/checkpoints/step-00000006/step.json").read_text())
        self.assertEqual(anew["read"][0], read[0])


if __name__ == "__main__":
    unittest.main()
