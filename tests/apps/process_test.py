#!/usr/bin/env python3
"""Tests the process that `cyfa` is: symbols of its libraries, threads, memory, file size limit.

Usage: process_test.py PROGRAM [unittest arguments]
"""

import collections
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import unittest

from harness import PROGRAM, TINY, CliTest, run

CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "num_slots": 16,
          "vocab_size": 258, "intermediate_size": 64, "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes"}


def run_with(arguments, limit=None, without=(), **variables):
    """The program with other environment variables, some removed, and with resource limits set by `limit()`."""
    environment = {key: value for key, value in os.environ.items() if key not in without} | variables
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, encoding="utf-8", errors="replace", env=environment,
                          preexec_fn=limit, timeout=300)


def loaded_libraries():
    listed = subprocess.run(["ldd", PROGRAM], capture_output=True, encoding="utf-8", check=True).stdout
    return sorted({pathlib.Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", listed)})


class Symbols(unittest.TestCase):
    """Two libraries that define different things under one name write into each other's memory."""

    def exported_data(self, path):
        """Data symbols that the dynamic linker can give to another library: name -> size. Weak ones are the same in every library."""
        listed = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, encoding="utf-8", check=True).stdout
        rows = [line.split() for line in listed.splitlines()]  # number, value, size, type, binding, visibility, section, name
        return {row[7].split("@")[0]: row[2] for row in rows
                if len(row) >= 8 and row[3] in ("OBJECT", "TLS") and row[4:6] == ["GLOBAL", "DEFAULT"] and row[6] not in ("UND", "ABS")}

    def test_no_two_libraries_export_the_same_data(self):
        owners = collections.defaultdict(list)
        libraries = loaded_libraries()
        self.assertTrue(any("torch_cpu" in path.name for path in libraries), libraries)
        for path in libraries:
            for name in self.exported_data(path):
                owners[name].append(path.name)
        self.assertIn("FLAGS_minloglevel", owners)  # of libc10: the check sees what it is about
        self.assertEqual({name: paths for name, paths in owners.items() if len(paths) > 1}, {})

    def test_no_library_uses_the_flags_of_another(self):
        result = run_with(["--version"], LD_DEBUG="bindings", LD_BIND_NOW="1")
        bindings = re.findall(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `(FLAGS_\w+)'", result.stderr)
        self.assertTrue(bindings)
        for user, owner, name in bindings:
            if "torch" in user:
                self.assertIn("torch", owner, name)
            else:
                self.assertEqual(user, owner, name)


class Threads(CliTest):
    def setUp(self):
        super().setUp()
        self.cpus = len(os.sched_getaffinity(0))
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(CONFIG))

    def threads(self, result):
        self.check(result, 0)
        return json.loads(result.stdout)[0]["threads"]

    def test_more_than_there_are_is_bounded_with_a_word(self):
        for count in (self.cpus + 1, 40000):
            result = run("bench", "op", *TINY, "--threads", count, "--json")
            self.assertLessEqual(self.threads(result), self.cpus)
            self.assertIn(f"--threads asks for {count} threads", result.stderr)
        result = run("bench", "op", *TINY, "--threads", 1, "--json")
        self.assertEqual(self.threads(result), 1)
        self.assertEqual(result.stderr, "")

    def test_the_environment_is_bounded_too(self):
        result = run_with(["bench", "op", *TINY, "--json"], OMP_NUM_THREADS="40000")
        self.assertLessEqual(self.threads(result), self.cpus)
        self.assertIn("OMP_NUM_THREADS asks for 40000 threads", result.stderr)
        self.assertEqual(self.threads(run_with(["bench", "op", *TINY, "--json"], OMP_NUM_THREADS="1")), 1)

    def test_recipes_and_prepare_are_bounded_too(self):
        text = self.folder / "text.txt"
        text.write_text("all work and no play makes jack a dull boy. " * 100)
        data = self.folder / "data"
        result = run("prepare", data, text, "--tokenizer", "bytes", "--threads", 40000)
        self.check(result, 0)
        self.assertIn("40000", result.stderr)
        result = run("train", self.folder / "run", f"model={self.config}", f"data={data}", "steps=2", "batch=2", "context=16", "warmup=1",
                     "threads=40000")
        self.check(result, 0)
        self.assertIn("threads in the recipe asks for 40000 threads", result.stderr)

    def test_an_affinity_mask_counts(self):
        one = min(os.sched_getaffinity(0))
        result = run_with(["bench", "op", *TINY, "--threads", "2", "--json"], limit=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(self.threads(result), 1)
        self.assertIn("has 1 CPU,", result.stderr)

    @unittest.skipIf(os.geteuid() == 0 or len(os.sched_getaffinity(0)) < 2,
                     "SKIPPED: a limit on the number of processes binds only other users than root, on two CPUs or more")
    def test_threads_that_cannot_start_are_not_asked_for(self):
        result = run_with(["bench", "op", *TINY, "--threads", "2", "--json"],
                          limit=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
        self.assertIn(result.returncode, (0, 2))

    def test_spinning_is_bounded_unless_the_user_says_otherwise(self):
        def told(**variables):
            result = run_with(["--version"], without=("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"), OMP_DISPLAY_ENV="verbose", **variables)
            self.check(result, 0)
            return dict(re.findall(r"(GOMP_SPINCOUNT|OMP_WAIT_POLICY) = '(\w+)'", result.stderr))

        self.assertLessEqual(int(told()["GOMP_SPINCOUNT"]), 20000)
        self.assertGreater(int(told()["GOMP_SPINCOUNT"]), 0)
        self.assertEqual(told(GOMP_SPINCOUNT="77")["GOMP_SPINCOUNT"], "77")
        self.assertEqual(told(OMP_WAIT_POLICY="passive")["GOMP_SPINCOUNT"], "0")
        self.assertEqual(told(OMP_WAIT_POLICY="active")["OMP_WAIT_POLICY"], "ACTIVE")

    def test_doctor_reports_them(self):
        result = run_with(["doctor", "--json"], without=("OMP_WAIT_POLICY",), OMP_NUM_THREADS="1", GOMP_SPINCOUNT="5")
        self.check(result, 0)
        row = json.loads(result.stdout)[0]
        self.assertEqual((row["cpu"]["threads"], row["cpu"]["usable"] <= self.cpus), (1, True))
        self.assertIn("spin 5 turns", row["cpu"]["wait_policy"])
        self.assertGreater(row["memory"]["bytes"], row["memory"]["free_bytes"])


class Memory(CliTest):
    """Running out of memory is an error with words."""

    def test_a_config_too_large_for_the_machine(self):
        config = self.folder / "config.json"
        config.write_text(json.dumps(CONFIG | {"hidden_size": 65536, "num_heads": 4096, "vocab_size": 1 << 24}))
        result = run_with(["init", config, self.folder / "out"], limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30)))
        self.check_error(result, "out of memory", "4096.0 GiB more were wanted", "ulimit -v", "smaller")
        self.assertFalse((self.folder / "out/model.safetensors").exists())

    def test_a_tensor_beyond_the_limit_of_the_process(self):
        result = run_with(["bench", "op", "--T", "400000", "--repeats", "1"],
                          limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)))
        self.check_error(result, "out of memory", "GiB more were wanted", "ulimit -v")

    def test_memory_that_is_no_tensor(self):
        prompt = self.folder / "prompt.txt"
        with open(prompt, "wb") as file:
            file.truncate(1 << 30)
        config, model = self.folder / "config.json", self.folder / "model"
        config.write_text(json.dumps(CONFIG))
        self.check(run("init", config, model), 0)
        result = run_with(["generate", model, "--prompt-file", prompt],
                          limit=lambda: resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20)))
        self.check_error(result, "out of memory", "MiB more were wanted", "ulimit -d", "smaller")


class FileSizeLimit(CliTest):
    """A write beyond `ulimit -f` is an error with words; the signal that comes with it does not end the process."""

    def test_every_kind_of_file(self):
        config, model, text = self.folder / "config.json", self.folder / "model", self.folder / "text.txt"
        config.write_text(json.dumps(CONFIG))
        text.write_text("all work and no play makes jack a dull boy. " * 2000)
        self.check(run("init", config, model), 0)

        def tight():
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

        for arguments, name in ((["init", config, self.folder / "new"], "new"),
                                (["prepare", self.folder / "data", text, "--tokenizer", "bytes"], "data"),
                                (["generate", model, "-p", "all", "-n", "1", "--save-state", self.folder / "state.safetensors"], "state"),
                                (["show", "clock", "-o", self.folder / "clock.png"], "clock.png"),
                                (["models", "--json", self.folder / "rows.json"], "rows.json")):
            with self.subTest(command=arguments[0]):
                self.check_error(run_with(arguments, limit=tight), name)
        with open(self.folder / "out.txt", "wb") as out:
            result = subprocess.run([PROGRAM, "models"], stdout=out, stderr=subprocess.PIPE, encoding="utf-8", preexec_fn=tight,
                                    timeout=300)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
