"""The program `cyfa` inside of Python: `python -m cyfa COMMAND` and the script `cyfa` are the executable's commands, in one process with
torch, with the same output and exit status."""

import ctypes
import os
import sys

import cyfa
from cyfa import _ranks


def main():
    """Runs the command of sys.argv[1:] and leaves with its exit status."""
    library = ctypes.CDLL(str(cyfa.library))  # runs without the interpreter's lock
    words = [os.fsencode(word) for word in (sys.executable, *sys.argv[1:])]
    together = sys.argv[1:2] == ["train"] or sys.argv[1:3] == ["bench", "train"]
    ranks = _ranks.Ranks(library) if together and _ranks.started() else None
    status = library.cyfa_program(len(words), (ctypes.c_char_p * (len(words) + 1))(*words))
    if ranks:
        ranks.leave(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
