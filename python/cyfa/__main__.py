"""The program `cyfa` inside of Python: `python -m cyfa COMMAND` and the script `cyfa` are the executable's commands, in one process with
torch, with the same output and exit status."""

import ctypes
import os
import sys

import cyfa


def main():
    """Runs the command of sys.argv[1:] and leaves with its exit status."""
    program = ctypes.CDLL(str(cyfa.library)).cyfa_program  # runs without the interpreter's lock
    words = [os.fsencode(word) for word in (sys.executable, *sys.argv[1:])]
    sys.exit(program(len(words), (ctypes.c_char_p * (len(words) + 1))(*words)))


if __name__ == "__main__":
    main()
