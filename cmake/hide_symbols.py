#!/usr/bin/env python3
"""Copies shared libraries (ELF, 64 bit), hiding the symbols that other libraries of the process define as well.

Usage: hide_symbols.py FOLDER OLD NEW LIBRARY... --from OTHER...

Where several libraries define a symbol of one name, the dynamic linker gives all of them the first one's. If two things only share their
name, one library then writes into another's memory: libsentencepiece and libc10 both define FLAGS_minloglevel, an object of 32 bytes and an
int. In the copies such symbols have hidden visibility, as if the library had been linked with a version script: each library uses its own.
Weak symbols (inline functions and templates, which are the same everywhere by the rules of C++) stay as they are.

A copy is called NEW where the library is called OLD, also inside (SONAME and NEEDED), so that no search path leads to the original.
Prints the paths of the copies, which are named by their SONAME. Called by cmake/Dependencies.cmake.
"""

import mmap
import pathlib
import struct
import sys

SHT_DYNAMIC, SHT_DYNSYM = 6, 11
DT_NEEDED, DT_SONAME = 1, 14
STB_GLOBAL = 1
STV_HIDDEN = 2
SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size


class Elf:
    def __init__(self, data):
        self.data = data
        if data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit("hide_symbols.py: a library is no 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        # type, offset, size, link of every section
        headers = [struct.unpack_from("<4xI16xQQI", data, table + i * size) for i in range(count)]
        self.sections = {kind: (offset, length, headers[link][1]) for kind, offset, length, link in headers
                         if kind in (SHT_DYNAMIC, SHT_DYNSYM)}

    def string(self, at):
        return bytes(self.data[at : self.data.find(b"\0", at)])

    def symbols(self):
        """Offset, name and fields of each dynamic symbol."""
        begin, length, names = self.sections[SHT_DYNSYM]
        for at in range(begin + SYMBOL.size, begin + length, SYMBOL.size):
            fields = SYMBOL.unpack_from(self.data, at)
            yield at, self.string(names + fields[0]), fields

    def defined(self):
        return {name for _, name, fields in self.symbols() if fields[3] != 0 and fields[2] & 3 != STV_HIDDEN}

    def needed(self):
        return {name for _, name, fields in self.symbols() if fields[3] == 0}

    def library_names(self, *tags):
        """Where the library's own name (DT_SONAME) and those of the libraries that it needs (DT_NEEDED) are."""
        begin, length, names = self.sections[SHT_DYNAMIC]
        entries = struct.iter_unpack("<QQ", self.data[begin : begin + length])
        return [names + value for tag, value in entries if tag in tags]


def mapped(path):
    with open(path, "rb") as file:
        return Elf(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def main():
    cut = sys.argv.index("--from")
    folder, old, new, *paths = sys.argv[1:cut]
    if len(new) > len(old):
        raise SystemExit(f"hide_symbols.py: {new} is longer than {old}")
    theirs = set().union(*(mapped(path).defined() for path in sys.argv[cut + 1 :]))
    copies = [Elf(bytearray(pathlib.Path(path).read_bytes())) for path in paths]
    for copy in copies:
        common = [(at, name, f) for at, name, f in copy.symbols() if f[3] != 0 and f[1] >> 4 == STB_GLOBAL and name in theirs]
        for other in copies:
            shared = other.needed().intersection(name for _, name, _ in common)
            if shared:
                raise SystemExit(f"hide_symbols.py: cannot hide {shared}: another of the libraries needs it")
        for at, _, fields in common:
            copy.data[at + 5] = fields[2] & ~3 | STV_HIDDEN
        for at in copy.library_names(DT_NEEDED, DT_SONAME):
            name = copy.string(at)
            copy.data[at : at + len(name)] = name.replace(old.encode(), new.encode(), 1).ljust(len(name), b"\0")
    for copy in copies:
        path = pathlib.Path(folder) / copy.string(copy.library_names(DT_SONAME)[0]).decode()
        if not path.is_file() or path.read_bytes() != copy.data:
            # Another file takes the name: a process that has mapped the old one would crash if its content changed.
            path.with_suffix(".new").write_bytes(copy.data)
            path.with_suffix(".new").replace(path)
        print(path)


main()
