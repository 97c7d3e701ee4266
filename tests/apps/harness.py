"""What the tests of the program share: how to run it, files to run it on, and checks."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

if len(sys.argv) < 2:
    sys.exit(f"usage: {sys.argv[0]} PROGRAM [unittest arguments]")
PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from shared_folder import shared_folder  # noqa: E402: found by the line above

VECTORS = sorted((ROOT / "tests/vectors").glob("*.safetensors"))
MODELS = sorted(path.parent for path in (ROOT / "tests/vectors").glob("model_*/config.json"))
BASELINES = sorted(path.parent for path in (ROOT / "tests/vectors").glob("*/config.json") if path.parent not in MODELS)
# Larger vectors, outside this repository.
SHARED_BASELINES = sorted(path.parent for path in (shared_folder() / "golden/baselines").glob("*/config.json"))
SHARED_MODELS = sorted(path.parent for path in (shared_folder() / "golden").glob("model_*/config.json"))
SHARED_VECTORS = sorted((shared_folder() / "golden").glob("op_*.safetensors"))
TINY = ["--T", "70", "--H", "2", "--K", "16", "--V", "8", "--M", "16", "--repeats", "2"]


def needs_shared(found, what):
    """Skips a test if the files that it `found` are none, and says how much is not checked in a line that scripts/test.sh repeats."""
    reason = f"{what}: no shared/golden; set CYFA_SHARED"
    if not found:
        print(f"SKIPPED: {reason}", flush=True)
    return unittest.skipUnless(found, reason)


def run(*arguments, timeout=300):
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, encoding="utf-8", errors="replace")


class Vectors:
    """A safetensors file as a dictionary of tensors that can be changed and written again."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        self.metadata = header.pop("__metadata__", {})
        self.tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            self.tensors[name] = [entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end]]

    def code(self, name):
        return {"F32": "f", "F64": "d"}[self.tensors[name][0]]

    def floats(self, name):
        code, data = self.code(name), self.tensors[name][2]
        return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))

    def set_floats(self, name, values):
        self.tensors[name][2] = struct.pack(f"<{len(values)}{self.code(name)}", *values)

    def write(self, path):
        header, body = {"__metadata__": self.metadata}, b""
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)
        return path


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, result, status):
        self.assertEqual(result.returncode, status, f"stdout:\n{result.stdout[-3000:]}\nstderr:\n{result.stderr[-3000:]}")

    def check_error(self, result, *words):
        self.check(result, 2)
        self.assertIn("cyfa: error: ", result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def verify_changed(self, change, *arguments):
        vectors = Vectors(VECTORS[0])
        change(vectors)
        return run("verify", "op", vectors.write(self.folder / "changed.safetensors"), *arguments)
