"""Loads the compiled library, libcyfa_python, into torch.

The library is in lib/ beside this file in an installed package, and in build/ in a source tree, where the one built last is taken; the
environment variable CYFA_LIBRARY names another one. It is built for one minor version of torch, which it is checked against here.
"""

import os
import pathlib
import signal
import sys

NAME = "libcyfa_python.so"

# A process that is the program (`python -m cyfa`, the script `cyfa`) behaves as the executable from here on, before torch is loaded.
if sys.argv and os.path.basename(sys.argv[0]) in ("-m", "cyfa"):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, unless the command handles it
    if "OMP_WAIT_POLICY" not in os.environ:  # how long waiting threads spin, as in apps/spin.cc; libgomp reads it when torch loads it
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import torch  # noqa: E402: after the lines above


def candidates():
    """Where the library may be."""
    chosen = os.environ.get("CYFA_LIBRARY")
    if chosen:
        return [pathlib.Path(chosen).resolve()]
    import cyfa

    folders = [pathlib.Path(folder) / "lib" for folder in cyfa.__path__]
    root = pathlib.Path(__file__).resolve().parents[2]
    if (root / "python/CMakeLists.txt").is_file():
        folders += [root / "build", root / "build-cuda"]
    return [folder / NAME for folder in folders]


def load():
    """Loads the library once and returns its path; raises ImportError that says how to build it."""
    tried = candidates()
    found = [path for path in tried if path.is_file()]
    if not found:
        raise ImportError(
            "cyfa: the compiled library is missing; looked for " + ", ".join(map(str, tried)) + ". Build it with `pip install .` in the "
            "source tree of cyfa, into the environment of the torch that it will run with, or with `make build`."
        )
    path = max(found, key=lambda path: path.stat().st_mtime)
    again = "build cyfa again with `pip install --force-reinstall --no-deps .`"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"cyfa: {path} does not load into torch {torch.__version__}: {error}. It is built for one minor version of torch; {again}"
        ) from error
    built = torch.ops.cyfa.built_with()
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(
            f"cyfa: {path} was built with torch {built}, and this is torch {torch.__version__}; install torch {built}, or {again}"
        )
    return path


def shared_folder():
    """The folder that holds configs/ and recipes/: in the package, or the source tree."""
    return pathlib.Path(torch.ops.cyfa.shared_folder())
