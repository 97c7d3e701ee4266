#!/usr/bin/env python3
"""The cyfa program from outside: output, exit statuses, files. Usage: cli_test.py PROGRAM [unittest arguments]"""

import json
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = sorted((ROOT / "tests/vectors").glob("*.safetensors"))
GOLDEN = sorted((ROOT.parent / "shared/golden").glob("op_*.safetensors"))
PROGRAM = None
TINY = ["--T", "70", "--H", "2", "--K", "16", "--V", "8", "--M", "16", "--repeats", "2"]


def run(*arguments, timeout=300):
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, encoding="utf-8", errors="replace")


class Vectors:
    """A safetensors file taken apart, to be changed and put together again."""

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


class General(CliTest):
    def test_help_and_version(self):
        for words in (["--help"], ["doctor", "--help"], ["verify", "op", "--help"], ["bench", "op", "--help"], ["show", "clock", "--help"]):
            result = run(*words)
            self.check(result, 0)
            self.assertIn("Usage:", result.stdout)
        self.assertIn("Examples:", run("--help").stdout)
        self.assertRegex(run("--version").stdout, r"^cyfa \d+\.\d+\.\d+\n$")

    def test_bad_options_are_explained(self):
        self.check_error(run("frobnicate"), "no command is called frobnicate", "cyfa --help")
        self.check_error(run("bench", "frobnicate"), "no command is called frobnicate", "cyfa bench --help")
        self.check_error(run("bench", "op", "--frobnicate"), "--frobnicate", "cyfa bench op --help")
        self.check_error(run("bench", "op", "--T", "0"), "--T")
        self.check_error(run("bench", "op", "--T", "many"), "--T")
        self.check_error(run("bench", "op", "--M", "15"), "--M", "even")
        self.check_error(run("bench", "op", "--dtype", "fp8"), "--dtype")
        self.check_error(run("bench", "op", "--backend", "sm90", *TINY), "sm90")
        self.check_error(run("show", "clock", "--slots", "64"), "--slots", "odd")
        self.check_error(run("verify", "op"), "files")
        self.check_error(run("verify", "op", "x", "--limit", "-1"), "--limit")
        self.check(run(), 2)

    def test_doctor(self):
        result = run("doctor")
        self.check(result, 0)
        self.assertIn("healthy", result.stdout)
        report = json.loads(run("doctor", "--json").stdout)
        self.assertTrue(report["healthy"])
        backends = {(b["op"], b["backend"]): b for b in report["backends"] if b["device"] == "cpu"}
        self.assertTrue(backends["cyclic_flow", "portable"]["available"])
        self.assertTrue(backends["cyclic_flow", "reference"]["available"])
        for backend in backends.values():
            self.assertEqual(backend["available"], backend["refusal"] == "")
        for check in report["checks"]:
            self.assertLessEqual(check["rel_l2"], check["limit"])
        self.assertIn(report["step_kernel"], ("baseline", "avx2", "avx512"))


@unittest.skipUnless(VECTORS, "tests/vectors is empty")
class Verify(CliTest):
    def test_own_vectors_pass(self):
        for dtype in ("fp32", "fp64", "bf16"):
            result = run("verify", "op", *VECTORS, "--dtype", dtype, "--json")
            self.check(result, 0)
            rows = json.loads(result.stdout)
            self.assertGreaterEqual(len(rows), 2 * len(VECTORS))
            for row in rows:
                self.assertEqual(list(row), ["file", "backend", "dtype", "tensors", "pass"])
                self.assertEqual(list(row["tensors"][0]), ["name", "rel_l2", "max_abs", "limit", "pass"])
                self.assertIn("o", [t["name"] for t in row["tensors"]])
                self.assertIn("d_q", [t["name"] for t in row["tensors"]])
                self.assertTrue(row["pass"])
        text = run("verify", "op", VECTORS[0])
        self.check(text, 0)
        self.assertIn("PASS", text.stdout)
        self.assertNotIn("FAIL", text.stdout)

    @unittest.skipUnless(GOLDEN, "no folder ../shared/golden")
    def test_authors_vectors_pass(self):
        self.check(run("verify", "op", *GOLDEN), 0)
        self.check(run("verify", "op", *GOLDEN, "--dtype", "bf16"), 0)

    def test_one_wrong_element_in_any_tensor_fails(self):
        names = Vectors(VECTORS[0]).tensors
        expected = [n for n in names if n == "o" or n.startswith("final_") or (n.startswith("d_") and not n.startswith("d_final"))]
        self.assertGreater(len(expected), 10)
        paths = []
        for name in expected:
            vectors = Vectors(VECTORS[0])
            values = vectors.floats(name)
            values[len(values) // 2] += 1e-3 * max(map(abs, values)) * len(values) ** 0.5
            vectors.set_floats(name, values)
            paths.append(vectors.write(self.folder / f"{name}.safetensors"))
        result = run("verify", "op", *paths, "--backend", "portable", "--json")
        self.check(result, 1)
        for name, row in zip(expected, json.loads(result.stdout)):
            self.assertEqual([t["name"] for t in row["tensors"] if not t["pass"]], [name])
            self.assertFalse(row["pass"])
        self.check(run("verify", "op", *paths, "--limit", "10"), 0)
        self.check(run("verify", "op", VECTORS[0], "--limit", "1e-12"), 1)

    def test_nan_never_passes(self):
        for name in ("o", "q", "d_v"):
            for bad in (float("nan"), float("inf")):

                def change(vectors):
                    vectors.set_floats(name, [bad] + vectors.floats(name)[1:])

                result = self.verify_changed(change, "--limit", "1e30", "--json")
                self.check(result, 1)
                rows = json.loads(result.stdout)
                self.assertFalse(any(row["pass"] for row in rows))

    def test_bad_files_are_named(self):
        self.check_error(run("verify", "op", self.folder / "absent.safetensors"), "absent.safetensors")
        self.check_error(run("verify", "op", self.folder), str(self.folder))
        self.check_error(run("verify", "op", __file__), "cli_test.py")
        cases = {
            '"beta"': lambda v: v.tensors.pop("beta"),
            '"readout"': lambda v: v.tensors.pop("readout"),
            '"k"': lambda v: v.tensors["k"].__setitem__(1, [1, 1, 1, len(v.floats("k"))]),
            '"g"': lambda v: v.tensors["g"].__setitem__(0, "I32"),
            '"initial_v"': lambda v: (v.tensors.pop("initial_v", None), v.tensors.setdefault("initial_k", ["F32", [0], b""])),
            '"d_Q"': lambda v: v.tensors.__setitem__("d_Q", v.tensors.pop("d_q")),
            '"scale"': lambda v: v.metadata.__setitem__("scale", "a half"),
            "log_alpha": lambda v: v.set_floats("g", [0.5] * len(v.floats("g"))),
            "neither do nor d_final": lambda v: [v.tensors.pop(n) for n in list(v.tensors) if n == "do" or n.startswith("d_final")],
            "no expected": lambda v: [v.tensors.pop(n) for n in list(v.tensors) if n in ("o", "do") or n.startswith(("final", "d_"))],
        }
        for words, change in cases.items():
            with self.subTest(words):
                self.check_error(self.verify_changed(change), "changed.safetensors", words)

    def test_good_files_are_still_checked_beside_a_bad_one(self):
        result = run("verify", "op", self.folder / "absent.safetensors", VECTORS[0], "--json")
        self.check(result, 2)
        self.assertTrue(all(row["pass"] for row in json.loads(result.stdout)))

    def test_truncated_files_are_refused(self):
        data = VECTORS[0].read_bytes()
        paths = []
        for i in range(60):
            path = self.folder / f"{i}.safetensors"
            path.write_bytes(data[: len(data) * i // 60])
            paths.append(path)
        result = run("verify", "op", *paths)
        self.check_error(result)
        for path in paths:
            self.assertIn(f"{path}: ", result.stderr)

    def test_mutated_files_never_crash(self):
        """Some mutations are harmless (a byte of the source note), so any status will do; a signal or a hang will not."""
        draw = random.Random(20240229)
        words = [b"0", b"1", b"9", b"-1", b"1e9", b"4611686018427387904", b"F64", b"I8", b"BF16", b"q", b"{", b"]", b"null", b"\xff", b'"']
        paths = []
        for i in range(400):
            data = bytearray(draw.choice(VECTORS).read_bytes())
            (length,) = struct.unpack("<Q", data[:8])
            for _ in range(draw.choice((1, 1, 2, 5))):
                kind = draw.randrange(5)
                if kind == 0:  # a byte anywhere
                    data[draw.randrange(len(data))] = draw.randrange(256)
                elif kind == 1:  # a byte of the header
                    data[8 + draw.randrange(length)] = draw.randrange(32, 127)
                elif kind == 2:  # a word of the header for another, of any length
                    at = 8 + draw.randrange(length)
                    data[at : at + draw.randrange(1, 6)] = draw.choice(words)
                    data[:8] = struct.pack("<Q", length)
                elif kind == 3:  # the length of the header
                    data[draw.randrange(8)] = draw.randrange(256)
                else:  # a number of the data
                    at = 8 + length + draw.randrange((len(data) - 8 - length) // 8) * 8
                    data[at : at + 8] = struct.pack("<d", draw.choice((0.0, -0.0, 1e300, -1e38, 5e-324, float("inf"), float("nan"), 3e9)))
            path = self.folder / f"{i}.safetensors"
            path.write_bytes(data)
            paths.append(path)
        for begin in range(0, len(paths), 50):
            batch = paths[begin : begin + 50]
            result = run("verify", "op", *batch)
            if result.returncode not in (0, 1, 2):
                guilty = [path for path in batch if run("verify", "op", path).returncode not in (0, 1, 2)]
                self.fail(f"exit status {result.returncode} for mutations {[p.name for p in guilty]}: {result.stderr[-2000:]}")


class Bench(CliTest):
    def test_rows(self):
        for op, passes in (("cyclic_flow", ["forward", "backward"]), ("scalar_gated_la", ["forward", "backward"]), ("step", ["step"])):
            result = run("bench", "op", "--op", op, "--B", "2", *TINY, "--json", "-")
            self.check(result, 0)
            rows = json.loads(result.stdout)
            self.assertEqual([row["pass"] for row in rows], passes)
            for row in rows:
                self.assertEqual((row["impl"], row["op"], row["B"], row["K"], row["dtype"]), ("cyfa", op, 2, 16, "fp32"))
                self.assertTrue(0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"])
                for key in ("commit", "date", "machine", "versions", "threads", "check_rel_l2"):
                    self.assertIn(key, row)

    def test_text_and_file(self):
        path = self.folder / "rows.json"
        result = run("bench", "op", "--pass", "forward", "--dtype", "bf16", "--chunk", "16", "--segment-chunks", "2", *TINY, "--json", path)
        self.check(result, 0)
        self.assertIn("GFLOP/s", result.stdout)
        self.assertEqual(len(json.loads(path.read_text())), 1)
        self.check_error(run("bench", "op", *TINY, "--json", self.folder / "absent" / "rows.json"), "absent")

    def test_operations_at_the_model_shape(self):
        """27.3 MFLOP forward and 60 backward for a chunk of 64 tokens of one head, K = V = 256, M = 128."""
        rows = json.loads(run("bench", "op", "--T", "64", "--H", "1", "--repeats", "1", "--json", "-").stdout)
        self.assertAlmostEqual(rows[0]["gflop"], 0.0273, delta=0.0001)
        self.assertAlmostEqual(rows[1]["gflop"], 0.060, delta=0.0005)

    def test_an_interrupt_leaves_no_file(self):
        process = subprocess.Popen([PROGRAM, "bench", "op", "--T", "4096", "--repeats", "1000", "--json", str(self.folder / "rows.json")],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=20), -signal.SIGINT)
        self.assertEqual(list(self.folder.iterdir()), [])


class Show(CliTest):
    def test_clock(self):
        path = self.folder / "clock.png"
        result = run("show", "clock", "--png", path)
        self.check(result, 0)
        self.assertIn("The clock", result.stdout)
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(data[-8:-4], b"IEND")
        width, height = struct.unpack(">II", data[16:24])
        self.assertGreater(min(width, height), 500)
        self.check(run("show", "clock", "--tokens", "20", "--slots", "3", "--png", path), 0)
        self.check_error(run("show", "clock", "--png", self.folder / "absent" / "clock.png"), "absent")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
