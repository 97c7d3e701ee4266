#!/usr/bin/env python3
"""Tests `cyfa train` from outside: output, exit statuses, files. Usage: train_test.py PROGRAM [unittest arguments]"""

import json
import resource
import signal
import subprocess
import unittest

from harness import PROGRAM, CliTest, run


class Train(CliTest):
    def setUp(self):
        super().setUp()
        text = self.folder / "text.txt"
        text.write_text("all work and no play makes jack a dull boy. " * 400)
        self.data = self.folder / "data"
        self.check(run("prepare", self.data, text, "--tokenizer", "bytes"), 0)
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps({"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2,
                                           "head_dim": 16, "num_slots": 16, "vocab_size": 258, "intermediate_size": 64,
                                           "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes"}))
        self.keys = [f"model={self.config}", f"data={self.data}", f"validation={self.data}", "steps=20", "batch=4", "context=32",
                     "warmup=2", "rate=3e-3", "log_every=1", "eval_batches=2"]

    def weights(self, name):
        return (self.folder / name / "checkpoints/step-00000020/model.safetensors").read_bytes()

    def test_a_killed_run_goes_on_bit_for_bit(self):
        self.check(run("train", self.folder / "whole", *self.keys), 0)
        self.begun("cut")
        self.assertNotIn("step-00000020", [path.name for path in (self.folder / "cut/checkpoints").iterdir()])
        self.check(run("train", "--resume", self.folder / "cut"), 0)
        self.assertEqual(self.weights("whole"), self.weights("cut"))
        rows = [json.loads(line) for line in (self.folder / "cut/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([row["step"] for row in rows], list(range(1, 21)))
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        self.assertIn("eval_loss", rows[-1])
        self.assertIn("slot_occupancy", rows[-1]["memory"])
        for name in ("recipe.toml", "manifest.json", "loss.png", "loss.svg"):
            self.assertTrue((self.folder / "cut" / name).exists())
        result = run("generate", self.folder / "cut/checkpoints/step-00000020", "-p", "all ", "-n", "5", "-q")
        self.check(result, 0)

    def test_a_signal_saves_and_leaves(self):
        keys = [key for key in self.keys if not key.startswith("steps")] + ["steps=100000"]
        process = subprocess.Popen([PROGRAM, "train", str(self.folder / "run"), *keys], stdout=subprocess.PIPE, encoding="utf-8")
        with process:
            for line in process.stdout:
                if line.startswith("step      3"):
                    process.send_signal(signal.SIGTERM)
                    break
            rest = process.stdout.read()
        self.assertEqual(process.returncode, 3)
        self.assertIn("--resume", rest)
        self.assertEqual(len(list((self.folder / "run/checkpoints").iterdir())), 1)

    def begun(self, name):
        """A run of 20 steps that is killed after step 5."""
        command = [PROGRAM, "train", str(self.folder / name), *self.keys, "save_every=5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
            for line in process.stdout:
                if line.startswith("saved step 5"):
                    process.kill()
        return self.folder / name

    def test_a_full_disk_leaves_the_last_checkpoint(self):
        self.check(run("train", self.folder / "whole", *self.keys), 0)
        folder = self.begun("full")
        # The killed run may have been writing its next checkpoint, which does not count and is removed.
        before = sorted(path.name for path in (folder / "checkpoints").iterdir() if ".part-" not in path.name)

        def no_room():  # writing beyond this size fails as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))

        failed = subprocess.run([PROGRAM, "train", "--resume", str(folder)], capture_output=True, encoding="utf-8", preexec_fn=no_room,
                                timeout=300)
        self.check_error(failed, "step-")
        self.assertEqual(sorted(path.name for path in (folder / "checkpoints").iterdir()), before)
        self.check(run("train", "--resume", folder), 0)
        self.assertEqual(self.weights("whole"), self.weights("full"))

    def test_a_lost_shard_is_named(self):
        folder = self.begun("lost")
        shard = max(self.data.iterdir(), key=lambda path: path.stat().st_size)
        kept = shard.read_bytes()
        shard.unlink()
        self.check_error(run("train", "--resume", folder), shard.name)
        shard.write_bytes(kept[: len(kept) // 2])
        self.check_error(run("train", "--resume", folder), shard.name)
        shard.write_bytes(kept)
        self.check(run("train", "--resume", folder), 0)

    def test_what_cannot_be(self):
        run_folder = self.folder / "run"
        for absurd in ("steps=0", "batch=0", "batch=-4", "context=0", "accumulate=3", "clip=-1", "rate=-1", "rate=nan", "threads=-1",
                       "dtype=fp4", "dtype=fp8", "device=tpu"):
            self.check_error(run("train", run_folder, *self.keys, absurd), absurd.split("=")[0])
        self.check_error(run("train", run_folder, *self.keys, "setps=3"), "setps")
        self.check_error(run("train", run_folder, *self.keys, "rate=x"), "rate")
        self.check_error(run("train", run_folder, *self.keys[2:], f"model={self.config}"), "data")
        self.check_error(run("train", run_folder, *self.keys, f"data={self.folder / 'absent'}"), "absent")
        self.check_error(run("train", self.folder / "long", *self.keys, "context=1000000"))
        self.check_error(run("train", "--resume", run_folder), "recipe.toml")
        self.check_error(run("train", run_folder, *self.keys, "rate=1e6", "clip=0", "warmup=0"), "step ")
        self.check_error(run("train", run_folder, *self.keys), "--resume")


if __name__ == "__main__":
    unittest.main()
