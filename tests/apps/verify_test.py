#!/usr/bin/env python3
"""Tests `cyfa verify op` from outside: output, exit statuses, files. Usage: verify_test.py PROGRAM [unittest arguments]"""

import json
import random
import struct
import unittest

from harness import SHARED_VECTORS, VECTORS, CliTest, needs_shared, run, Vectors


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

    @needs_shared(SHARED_VECTORS, "3 vectors of the authors")
    def test_authors_vectors_pass(self):
        self.check(run("verify", "op", *SHARED_VECTORS), 0)
        self.check(run("verify", "op", *SHARED_VECTORS, "--dtype", "bf16"), 0)

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
        self.check_error(run("verify", "op", __file__), "verify_test.py")
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
        rows = json.loads(result.stdout)
        self.assertEqual(list(rows[0]), ["file", "error", "pass"])
        self.assertTrue(len(rows) > 1 and all(row["pass"] for row in rows[1:]))

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
        """Some mutations are harmless (a byte of the metadata), so any exit status is accepted, but no signal and no hang."""
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


if __name__ == "__main__":
    unittest.main()
