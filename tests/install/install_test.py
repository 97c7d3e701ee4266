#!/usr/bin/env python3
"""Installs the C++ libraries and builds README.md's two programs with them, by the CMake lines of README.md, as an outside project.

Usage: install_test.py PROGRAM TORCH, the program in its build folder and the folder of the package torch.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve().parent
TORCH = sys.argv[2]
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Install(unittest.TestCase):
    def run_in(self, folder, *command):
        result = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        return result.stdout

    def test_the_programs_of_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        model, operator = re.findall(r"^```cpp\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        (lines,) = re.findall(r"^```cmake\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.run_in(folder, "cmake", "--install", BUILD, "--prefix", folder / "prefix")
            for file, text in (("model.cc", model), ("operator.cc", operator), ("CMakeLists.txt", lines)):
                (folder / file).write_text(text)
            self.run_in(folder, "cmake", "-S", ".", "-B", "b", f"-DCMAKE_PREFIX_PATH={folder}/prefix", f"-DCYFA_TORCH_DIR={TORCH}")
            self.run_in(folder, "cmake", "--build", "b")
            self.assertIn("[2, 300, 4, 64]", self.run_in(folder, "b/operator"))
            self.run_in(folder, "prefix/bin/cyfa", "init", "cyfa-bytes-2m", "m")
            self.assertTrue(self.run_in(folder, "b/model", "m"))


unittest.main(argv=sys.argv[:1])
