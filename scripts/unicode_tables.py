#!/usr/bin/env python3
"""Prints cyfa/eval/unicode_tables.h: the characters that Python's re counts as parts of words.

    scripts/unicode_tables.py > cyfa/eval/unicode_tables.h && clang-format -i cyfa/eval/unicode_tables.h

The table is that of the Unicode version of the Python that runs this; the header names it.
"""

import sys
import unicodedata

HEAD = """// Made by scripts/unicode_tables.py from Unicode {version}. Used by python_text.cc.
#pragma once

namespace cyfa::eval {{

// The characters that are letters, digits or "_" (\\w of Python's re), as runs: where each run begins and, after it, where it ends.
inline constexpr char32_t kWordRuns[] = {{{runs}}};

}}  // namespace cyfa::eval
"""


def word_runs():
    bounds, inside = [], False
    for code in range(sys.maxunicode + 1):
        if (chr(code).isalnum() or chr(code) == "_") != inside:
            bounds.append(code)
            inside = not inside
    return bounds


print(HEAD.format(version=unicodedata.unidata_version, runs=", ".join(f"0x{code:X}" for code in word_runs())), end="")
