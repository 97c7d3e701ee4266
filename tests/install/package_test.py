#!/usr/bin/env python3
"""Tests how the Python package finds its library, and the program inside of Python.

Usage: package_test.py LIBRARY PYTHON, libcyfa_python.so and an interpreter with torch.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

LIBRARY, PYTHON = sys.argv[1:3]
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python/cyfa"

# The help of each command, in one process: loading torch takes longer.
HELPS = """
import sys, cyfa.__main__
for command in sys.argv[1:]:
    sys.argv = ["cyfa", command, "--help"]
    try:
        cyfa.__main__.main()
    except SystemExit as end:
        assert end.code == 0, command
"""


class Package(unittest.TestCase):
    def python(self, *words, folder=PACKAGE.parent, library=LIBRARY):
        environment = os.environ | {"PYTHONPATH": str(folder), "CYFA_LIBRARY": library}
        return subprocess.run([PYTHON, *words], env=environment, capture_output=True, text=True, timeout=300)

    def test_without_a_library_it_says_how_to_build_one(self):
        with tempfile.TemporaryDirectory() as name:
            shutil.copytree(PACKAGE, pathlib.Path(name) / "cyfa", ignore=shutil.ignore_patterns("lib"))
            result = self.python("-c", "import cyfa", folder=name, library="")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the compiled library is missing", result.stderr)
        self.assertIn("pip install .", result.stderr)

    def test_another_version_of_torch_is_refused(self):
        result = self.python("-c", "import torch; torch.__version__ = '9.9.0'; import cyfa")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("this is torch 9.9.0", result.stderr)

    def test_the_program(self):
        self.assertIn("cyfa-400m", self.python("-m", "cyfa", "models").stdout)
        self.assertEqual(self.python("-m", "cyfa", "trian").returncode, 2)

    def test_every_command_is_there(self):
        listed = self.python("-m", "cyfa", "--help").stdout.split("Commands:")[1].split("Examples:")[0]
        commands = re.findall(r"^  (\w+)  ", listed, re.MULTILINE)
        self.assertIn("train", commands)
        helps = self.python("-c", HELPS, *commands)
        self.assertEqual(helps.returncode, 0, helps.stderr)
        for command in commands:
            self.assertIn(f"Usage: cyfa {command}", helps.stdout)

    def test_an_interrupted_training_is_saved_and_resumes(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "text.txt").write_text("all work and no play makes jack a dull boy. " * 400)
            self.assertEqual(self.python("-m", "cyfa", "prepare", folder / "data", folder / "text.txt", "-q").returncode, 0)
            keys = ["model=cyfa-bytes-2m", f"data={folder / 'data'}", "batch=1", "context=32", "warmup=1", "log_every=1", "steps=100000"]
            command = [PYTHON, "-m", "cyfa", "train", folder / "run", *keys]
            environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "CYFA_LIBRARY": LIBRARY}
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                for line in process.stdout:
                    if line.startswith("step      3"):
                        process.send_signal(signal.SIGINT)
                        break
                out, error = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, out + error)
            self.assertIn("stopping after this step", error)
            self.assertNotIn("Traceback", error)
            (last,) = (folder / "run/checkpoints").iterdir()
            step = int(last.name[5:])
            more = self.python("-m", "cyfa", "train", "--resume", folder / "run", f"steps={step + 1}")
            self.assertEqual(more.returncode, 0, more.stderr)
            self.assertIn(f"resuming after step {step}", more.stdout)


unittest.main(argv=sys.argv[:1])
