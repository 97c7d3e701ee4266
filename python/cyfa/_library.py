"""Loads the compiled library, libcyfa_python, into torch.

The library is beside this file in an installed package, and in build/ in a source tree; the environment variable CYFA_LIBRARY names another
one. It is built for one minor version of torch, which it is checked against here.
"""

import os
import pathlib

import torch

NAME = "libcyfa_python.so"


def candidates():
    """Where the library may be, in order of preference."""
    chosen = os.environ.get("CYFA_LIBRARY")
    if chosen:
        return [pathlib.Path(chosen)]
    import cyfa

    folders = [pathlib.Path(folder) / "lib" for folder in cyfa.__path__]
    root = pathlib.Path(__file__).resolve().parents[2]
    if (root / "CMakeLists.txt").is_file():
        folders += [root / "build", root / "build-cuda"]
    return [folder / NAME for folder in folders]


def load():
    """Loads the library once; raises ImportError that says how to build it."""
    tried = candidates()
    path = next((path for path in tried if path.is_file()), None)
    if path is None:
        raise ImportError(
            "cyfa: the compiled library is missing; looked for " + ", ".join(map(str, tried)) + ". Build it with `pip install .` in the "
            "source tree of cyfa (with a torch of your own: `pip install --no-build-isolation .`), or with `make build`."
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"cyfa: {path} does not load into torch {torch.__version__}: {error}. It is built for one minor version of torch; "
            "build it again with `pip install --no-build-isolation --force-reinstall .`"
        ) from error
    built = torch.ops.cyfa.built_with()
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(
            f"cyfa: the library was built with torch {built}, and this is torch {torch.__version__}; install torch {built}, or build cyfa "
            "again with `pip install --no-build-isolation --force-reinstall .`"
        )
    return path


def shared_folder():
    """The folder that holds configs/ and recipes/: in an installed package its own, in a source tree the root."""
    import cyfa

    for folder in cyfa.__path__:
        if (pathlib.Path(folder) / "share/configs").is_dir():
            return pathlib.Path(folder) / "share"
    return pathlib.Path(__file__).resolve().parents[2]
