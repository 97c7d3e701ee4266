#!/usr/bin/env python3
"""Finds the torch of the Python that runs it, without importing it, and prints the folder of the package.

pip builds packages in isolation: by environment variables it hides what is installed, torch too. If torch is not found, this looks again
without these variables, so that `pip install .` builds against the torch of the environment that it installs into, and never against a
second copy. Other tools isolate by an environment of their own, in which there is no torch; the message names the option that they need.

Called by cmake/Torch.cmake, and by scikit-build-core for the dependencies of the Python package (pyproject.toml): the library runs with the
minor version of torch that it was built with.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

MISSING = (
    f"cyfa is built against an installed torch, and {sys.executable} has none. Install torch into the environment first, then "
    "`pip install .`; a tool that builds in an environment of its own needs --no-build-isolation (uv) or --no-isolation (build), and "
    "scikit-build-core installed beside torch."
)


def folder():
    """The folder of the package torch; empty if there is none."""
    found = importlib.util.find_spec("torch")
    if found and found.submodule_search_locations:
        return found.submodule_search_locations[0]
    if sys.flags.ignore_environment:
        return ""
    return subprocess.run([sys.executable, "-E", __file__], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


class Requirement:
    """The requirement of torch, as dynamic metadata."""

    def __init__(self):
        self.state = ""

    def build_state(self, state):
        self.state = state

    def dynamic_wheel(self, settings):
        return {"dependencies": True}

    def dynamic_metadata(self, settings, project):
        if self.state == "sdist":
            return {"dependencies": ["torch"]}
        package = folder()
        if not package:
            raise SystemExit(MISSING)
        text = (pathlib.Path(package) / "version.py").read_text(encoding="utf-8")
        minor = re.search(r"__version__ = '(\d+\.\d+)", text)[1]
        return {"dependencies": [f"torch=={minor}.*"]}


if __name__ == "__main__":
    print(folder())
