#!/usr/bin/env python3
"""Installs the Python package into fresh environments, from a wheel and in editable form, and uses it there.

Usage: wheel_test.py BUILD PYTHON, a release build and the interpreter with its torch. The fresh environments see that torch through a .pth
file instead of a second installation. Only the package's files are new: its library comes from the objects of BUILD.
"""

import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, PYTHON = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SMOKE = """
import pathlib, sys, torch, cyfa
assert pathlib.Path(cyfa.__file__).is_relative_to(sys.prefix), cyfa.__file__
assert cyfa.library.is_relative_to(sys.prefix), cyfa.library
model = cyfa.nn.CausalLM("cyfa-bytes-2m")
ids = torch.randint(0, 256, (2, 33))
loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).loss
loss.backward()
assert abs(float(loss) - 5.55) < 0.5, float(loss)  # about ln 258
assert all(p.grad.isfinite().all() for p in model.parameters())
print("works")
"""


def call(*command, folder=None):
    result = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


@contextlib.contextmanager
def options_of_pip(folder):
    """Options with which pip builds in BUILD. Such a build writes its own settings there; they are taken back in the end."""
    cache = BUILD / "CMakeCache.txt"
    kept = folder / cache.name
    shutil.copy2(cache, kept)
    values = dict(line.split("=", 1) for line in kept.read_text().splitlines() if line.startswith("CYFA_") and "=" in line)
    settings = [f"cmake.define.{name}={value}" for name, value in ((key.split(":")[0], value) for key, value in values.items())
                if name in ("CYFA_TESTS", "CYFA_BENCH", "CYFA_CUDA")]  # fmt: skip
    options = [word for setting in (f"build-dir={BUILD}", *settings) for word in ("-C", setting)]
    try:
        yield ["--no-deps", "--no-build-isolation", "--no-index", *options]
    finally:
        shutil.copy2(kept, cache)
        call("cmake", BUILD)


def fresh_environment(folder):
    """The interpreter of a new environment in `folder`, which finds torch and nothing of cyfa."""
    call(PYTHON, "-m", "venv", folder / "fresh")
    (packages,) = folder.glob("fresh/lib/python3*/site-packages")
    torch = call(PYTHON, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])").strip()
    (packages / "torch_of_the_build.pth").write_text(f"{pathlib.Path(torch).parent}\n")
    return folder / "fresh/bin/python"


def has(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(has("scikit_build_core"), "scikit-build-core is not installed (make test installs it)")
class Wheel(unittest.TestCase):
    def test_the_source_distribution_is_enough_to_configure_a_build_and_has_nothing_else(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            call(PYTHON, "-c", "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])", folder, folder=ROOT)
            (archive,) = folder.glob("*.tar.gz")
            shutil.unpack_archive(archive, folder)
            source = folder / archive.name.removesuffix(".tar.gz")
            files = {"CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
            folders = {"apps", "cmake", "configs", "cyfa", "data", "python", "recipes"}
            self.assertEqual({path.name for path in source.iterdir()}, files | folders)
            self.assertEqual([path for path in source.rglob("*") if path.suffix in (".o", ".so", ".pyc", ".log")], [])
            options = ["-DCYFA_TESTS=OFF", "-DCYFA_BENCH=OFF", "-DCYFA_CUDA=AUTO", f"-DPython_EXECUTABLE={PYTHON}"]
            said = call("cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", *options)
            self.assertIn("kernels: for CPUs", said)  # only, or also for GPUs

    def test_in_a_fresh_environment(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with options_of_pip(folder) as options:
                call(PYTHON, "-m", "pip", "wheel", "-w", folder, *options, ROOT)
            (wheel,) = folder.glob("*.whl")
            self.assertRegex(wheel.name, r"^cyfa-[0-9.]+-py3-none-linux_\w+\.whl$")  # one for every Python
            python = fresh_environment(folder)
            call(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
            # It asks for the minor version of torch that it was built with, which is there: pip brings no second one.
            torch = ".".join(call(python, "-c", "import torch; print(torch.__version__)").split(".")[:2])
            asked = call(python, "-c", "import importlib.metadata as m; print(*m.requires('cyfa'), sep='\\n')").splitlines()
            self.assertIn(f"torch=={torch}.*", asked)
            self.assertIn("works", call(python, "-c", SMOKE, folder=folder))
            # The entry point that transformers' Auto classes find the models by; it loads nothing.
            entered = "import sys, torch; assert 'cyfa_autoload' in sys.modules and 'cyfa' not in sys.modules"
            call(python, "-c", entered, folder=folder)
            tasks = call(python, "-m", "cyfa.lm_eval", folder=folder).strip()
            self.assertTrue((pathlib.Path(tasks) / "arc_easy.yaml").is_file())
            program = folder / "fresh/bin/cyfa"
            self.assertIn("cyfa-400m", call(program, "models", folder=folder))
            self.assertIn("torch", call(program, "doctor", folder=folder))
            said = call(program, "init", "cyfa-bytes-2m", folder / "model", folder=folder)
            said += call(python, "-m", "cyfa", "generate", folder / "model", "-p", "ab", "-n", "4", "-q", folder=folder)
            self.assertIn("ab", said)

    def test_editable(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            python = fresh_environment(folder)
            with options_of_pip(folder) as options:
                call(python, "-m", "pip", "install", *options, "-e", ROOT)
            files = call(python, "-c", "import cyfa, cyfa.engine; print(cyfa.__file__, cyfa.engine.__file__, cyfa.library, sep='\\n')",
                         folder=folder).splitlines()  # fmt: skip
            self.assertEqual(files[:2], [str(ROOT / "python/cyfa" / file) for file in ("__init__.py", "engine.py")])
            self.assertTrue(pathlib.Path(files[2]).is_relative_to(folder / "fresh"), files[2])
            self.assertIn("cyfa-400m", call(folder / "fresh/bin/cyfa", "models", folder=folder))


unittest.main(argv=sys.argv[:1])
