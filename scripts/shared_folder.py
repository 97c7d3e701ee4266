"""The folder shared/, which is no part of this repository: vectors of the original implementations and a corpus."""

import os
import pathlib


def shared_folder():
    """The folder named by CYFA_SHARED, or shared/ beside the checkout. It need not exist."""
    return pathlib.Path(os.environ.get("CYFA_SHARED") or pathlib.Path(__file__).resolve().parents[2] / "shared")
