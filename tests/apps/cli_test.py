#!/usr/bin/env python3
"""Tests the cyfa program from outside: output, exit statuses, files. Usage: cli_test.py PROGRAM [unittest arguments]"""

import json
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = sorted((ROOT / "tests/vectors").glob("*.safetensors"))
MODELS = sorted(path.parent for path in (ROOT / "tests/vectors").glob("model_*/config.json"))
BASELINES = sorted(path.parent for folder in (ROOT / "tests/vectors", ROOT.parent / "shared/golden/baselines")
                   for path in folder.glob("*/config.json") if path.parent not in MODELS)
GOLDEN_MODELS = sorted(path.parent for path in (ROOT.parent / "shared/golden").glob("model_*/config.json"))
GOLDEN = sorted((ROOT.parent / "shared/golden").glob("op_*.safetensors"))
PROGRAM = None
TINY = ["--T", "70", "--H", "2", "--K", "16", "--V", "8", "--M", "16", "--repeats", "2"]


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


class General(CliTest):
    def test_help_and_version(self):
        for command in ("", "doctor", "verify op", "verify model", "bench op", "bench decode", "bench train", "bench load", "bench state",
                        "show clock", "models", "init", "generate", "prepare", "train", "demo recall"):
            result = run(*command.split(), "--help")
            self.check(result, 0)
            self.assertIn("Usage:", result.stdout)
            self.assertIn("Exit status:", result.stdout)
            self.assertEqual("Examples:" in result.stdout, command == "", command)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 140, command)
        self.assertIn("3 stopped by a signal", run("train", "--help").stdout)
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

    def test_shared_options_are_the_same_everywhere(self):
        """An option that several commands have has one help text; --dtype names what it is the type of."""
        texts = {}
        for command in ("doctor", "verify op", "verify model", "bench op", "bench decode", "bench train", "bench load", "bench state",
                        "models", "init", "generate", "prepare"):
            help_text = run(*command.split(), "--help").stdout
            for option in ("--json", "--device", "--threads", "--repeats", "--dtype", "--engine"):
                words = re.search(rf"^  {option} .*\n(?:      .*\n)*", help_text, re.MULTILINE)
                if words:
                    text = re.sub(r" \[default: .*?\]|: fp32.*", "", " ".join(words[0].split()))
                    texts.setdefault(option, set()).add(re.sub(r"(type of) .*", r"\1", text))
        self.assertEqual({option: len(found) for option, found in texts.items()}, dict.fromkeys(texts, 1), texts)
        self.assertEqual(len(texts), 6)

    def test_json(self):
        """`--json` and `--json -` print rows in place of the text; `--json FILE` writes them as well; nothing else is overwritten."""
        config = ROOT / "configs/cyfa-400m.json"
        rows = json.loads(run("models", config, "--json").stdout)
        self.assertEqual(json.loads(run("models", "--json", "-", config).stdout), rows)
        path = self.folder / "rows.json"
        for words in (["--json", path], [f"--json={path}"]):  # the second replaces the first one's rows
            result = run("models", config, *words)
            self.check(result, 0)
            self.assertIn("cyfa-400m ", result.stdout)
            self.assertEqual(json.loads(path.read_text()), rows)
        copy = self.folder / "config.json"
        shutil.copy(config, copy)
        self.check_error(run("models", "--json", copy), "config.json", "not overwritten")
        self.assertEqual(copy.read_bytes(), config.read_bytes())
        self.check_error(run("models", "--json", self.folder), "not overwritten")

    def test_doctor(self):
        result = run("doctor")
        self.check(result, 0)
        self.assertIn("healthy", result.stdout)
        (report,) = json.loads(run("doctor", "--json").stdout)
        self.assertTrue(report["healthy"])
        backends = {(b["op"], b["backend"]): b for b in report["backends"] if b["device"] == "cpu"}
        self.assertTrue(backends["cyclic_flow", "portable"]["available"])
        self.assertTrue(backends["cyclic_flow", "reference"]["available"])
        for backend in backends.values():
            self.assertEqual(backend["available"], backend["refusal"] == "")
        for check in report["checks"]:
            self.assertLessEqual(check["rel_l2"], check["limit"])
        self.assertIn(report["step_kernel"], ("baseline", "avx2", "avx512"))

    def test_doctor_of_a_model_names_the_engine_and_why(self):
        for model in (MODELS[0], ROOT / "configs/parity/swa.json"):
            result = run("doctor", model)
            self.check(result, 0)
            self.assertRegex(result.stdout, r"  sm90 +no: .+\n  portable +yes\n")
            (row,) = json.loads(run("doctor", model, "--json").stdout)
            self.assertEqual(row["engine"], "portable")
            self.assertTrue(row["healthy"])
            for offer in row["decoding"] + row["training"]:
                self.assertEqual(offer["available"], offer["refusal"] == "")
        self.check_error(run("doctor", MODELS[0], "--engine", "sm90"), "engine sm90 refuses: ")
        self.check_error(run("doctor", MODELS[0], "--engine", "sm120"), "--engine")
        self.check_error(run("doctor", self.folder / "absent"), "absent")


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


class Models(CliTest):
    def test_configs(self):
        result = run("models")
        self.check(result, 0)
        for name in ("cyfa-400m", "cyfa-800m", "cyfa-1.4b"):
            self.assertIn(name, result.stdout)
        rows = {row["config"]: row for row in json.loads(run("models", "--json").stdout)}
        self.assertEqual(rows["cyfa-400m"]["state_scalars_per_layer"], 262144)
        self.assertEqual(json.loads(run("models", MODELS[0], "--json").stdout)[0]["config"], MODELS[0].name)
        self.check_error(run("models", self.folder / "absent.json"), "absent.json")

    def test_a_config_is_described_as_data(self):
        (row,) = json.loads(run("models", "--describe", ROOT / "configs/cyfa-9m.json").stdout)
        self.assertEqual(row["model_type"], "cyclic_flow_attention")
        self.assertEqual(row["config"]["conv_size"], 4)
        self.assertEqual(len(row["layers"]), row["config"]["num_hidden_layers"])
        self.assertIn("model.layers.0.attn.readout", [p["name"] for p in row["parameters"]])
        self.check_error(run("models", "--describe", "--kinds"), "--kinds")

    def test_a_hybrid_is_made_and_writes(self):
        config = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 2, "head_dim": 16,
                  "num_slots": 8, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes",
                  "layer_types": ["cyclic_flow_attention", "sliding_attention", "full_attention"],
                  "layer_configs": {"sliding_attention": {"num_attention_heads": 2, "sliding_window": 8},
                                    "full_attention": {"num_attention_heads": 2}}}
        path = self.folder / "hybrid.json"
        path.write_text(json.dumps(config))
        self.check(run("init", path, self.folder / "hybrid"), 0)
        result = run("generate", self.folder / "hybrid", "-p", "abc", "-n", "5", "--json")
        self.check(result, 0)
        self.assertEqual(len(json.loads(result.stdout)[0]["ids"]), 5)

    def test_kinds(self):
        result = run("models", "--kinds")
        self.check(result, 0)
        self.assertIn("cyclic_flow_attention", result.stdout)
        for row in json.loads(run("models", "--kinds", "--json").stdout):
            self.assertTrue(all(row.values()), row)
            self.assertIn(row["model_type"], result.stdout)

    def test_verify_baselines(self):
        for folder in BASELINES:
            loose = folder.name in ("kda", "delta_net")  # computed by kernels with errors near 1e-3
            self.check(run("verify", "model", folder, *(["--limit", "2e-3"] if loose else [])), 0)

    def test_verify(self):
        for folder in MODELS + GOLDEN_MODELS:
            result = run("verify", "model", folder, "--json")
            self.check(result, 0)
            (row,) = json.loads(result.stdout)
            self.assertTrue(row["pass"])
            self.assertGreater(len(row["tensors"]), 50)
        if not GOLDEN_MODELS:
            print("SKIPPED: no models in ../shared/golden")

    def changed_model(self, change_config=None, change_weights=None):
        folder = self.folder / "model"
        shutil.copytree(MODELS[0], folder)
        if change_config:
            config = json.loads((folder / "config.json").read_text())
            change_config(config)
            (folder / "config.json").write_text(json.dumps(config))
        if change_weights:
            weights = Vectors(folder / "model.safetensors")
            change_weights(weights)
            weights.write(folder / "model.safetensors")
        return folder

    def test_verify_sees_a_changed_weight(self):
        def change(weights):
            name = "model.layers.0.attn.q_norm.weight"
            weights.set_floats(name, [1.01 * x for x in weights.floats(name)])

        result = run("verify", "model", self.changed_model(change_weights=change))
        self.check(result, 1)
        self.assertIn("FAIL", result.stdout)

    def test_verify_names_what_is_wrong(self):
        self.check_error(run("verify", "model", self.changed_model(lambda c: c.__setitem__("clokc", 1))), "clokc")
        self.check_error(run("verify", "model", self.folder), str(self.folder))

    def test_init_is_reproducible_and_never_overwrites(self):
        for name in ("a", "b"):
            self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.folder / name, "--seed", "5"), 0)
        files = [(self.folder / name / "model.safetensors").read_bytes() for name in ("a", "b")]
        self.assertEqual(*files)
        self.check_error(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.folder / "a"), "not an empty folder")
        self.check_error(run("init", self.folder / "no.json", self.folder / "c"), "no.json")
        self.assertFalse((self.folder / "c").exists())


class Generate(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.model), 0)

    def rows(self, *arguments):
        result = run("generate", self.model, "--json", "-q", *arguments)
        self.check(result, 0)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_text_and_json(self):
        result = run("generate", self.model, "-p", "Hello", "-n", "5")
        self.check(result, 0)
        self.assertTrue(result.stdout.startswith("Hello"))
        self.assertIn("tokens", result.stderr)
        (row,) = self.rows("-p", "Hello", "-n", "5")
        self.assertEqual((len(row["ids"]), row["prompt_tokens"], row["finish"]), (5, 6, "length"))

    def test_a_batch_is_its_prompts(self):
        texts = ["a", "a much longer prompt than the first", "", "Grüße"]
        common = ["-n", "12", "-t", "0.9", "--top-k", "40", "--seed", "3", "--ignore-eos"]
        together = self.rows(*common, *[word for text in texts for word in ("-p", text)])
        for row, text in zip(together, texts):
            self.assertEqual(self.rows(*common, "-p", text)[0]["ids"], row["ids"])
        lines = self.folder / "lines"
        lines.write_text("\n".join(texts[:2]) + "\n")
        self.assertEqual([row["ids"] for row in self.rows(*common, "--prompt-lines", lines)], [row["ids"] for row in together[:2]])

    def test_states(self):
        state = self.folder / "state"
        whole = self.rows("-p", "abc", "-n", "12", "--ignore-eos")[0]["ids"]
        first = self.rows("-p", "abc", "-n", "5", "--ignore-eos", "--save-state", state)[0]["ids"]
        (rest,) = self.rows("-n", "7", "--ignore-eos", "--load-state", state)
        self.assertEqual(first + rest["ids"], whole)
        self.assertEqual((rest["prompt_tokens"], rest["cached_tokens"]), (0, 9))
        self.check(run("init", ROOT / "configs/cyfa-bytes-2m.json", self.folder / "other", "--seed", "1"), 0)
        self.check_error(run("generate", self.folder / "other", "--load-state", state), "another model")
        state.write_bytes(state.read_bytes()[:-3])
        self.check_error(run("generate", self.model, "--load-state", state), "state")
        self.check_error(run("generate", self.model, "-p", "a", "-p", "b", "--save-state", state), "one prompt")
        self.check_error(run("generate", self.model, "-n", "1", "--save-state", self.folder / "absent/state"), "absent")

    def test_odd_prompts(self):
        bad = self.folder / "bad"
        bad.write_bytes(bytes(range(256)) * 20)  # longer than the context, and no UTF-8
        result = run("generate", self.model, "--prompt-file", bad, "-n", "3")
        self.check(result, 0)
        self.assertIn("was trained on sequences of 2048", result.stderr)
        self.assertEqual(self.rows("--prompt-file", bad, "-n", "1")[0]["prompt_tokens"], 5121)
        self.check_error(run("generate", self.model, "--no-bos"), "no tokens")
        self.check_error(run("generate", self.model, "--prompt-file", self.folder / "absent"), "absent")
        self.assertEqual(len(self.rows("-n", "4", "--ignore-eos")[0]["ids"]), 4)

    def test_bad_options(self):
        for words in (["-t", "-1"], ["--top-p", "0"], ["--min-p", "2"], ["--repetition-penalty", "0"], ["-n", "-3"],
                      ["--tokenizer", "absent.model"], ["--dtype", "int4"]):
            self.check_error(run("generate", self.model, "-p", "x", *words))
        self.check_error(run("generate", self.folder / "absent"), "absent")
        (self.model / "model.safetensors").write_bytes(b"\x10")
        self.check_error(run("generate", self.model, "-p", "x"), "model.safetensors")

    def test_memory_in_half_precision(self):
        result = run("generate", self.model, "-p", "ab", "-n", "4", "-q", "--bf16-state", "--save-state", self.folder / "state")
        self.check(result, 0)
        self.check(run("generate", self.model, "-p", "c", "-n", "2", "-q", "--load-state", self.folder / "state"), 0)
        text = self.folder / "text.txt"
        text.write_text("some words, read token by token")
        result = run("bench", "state", self.model, text, "--json", "-")
        self.check(result, 0)
        row = json.loads(result.stdout)[0]
        self.assertLess(abs(row["nats_bf16"] - row["nats_fp32"]), 0.05)
        self.check_error(run("bench", "state", self.model, self.folder / "absent"), "absent")

    def test_stop(self):
        (row,) = self.rows("-p", "abc", "-n", "40", "-t", "1", "--ignore-eos")
        seen = next((c for c in row["text"] if c.isascii() and c.isprintable()), None)
        if seen:
            (stopped,) = self.rows("-p", "abc", "-n", "40", "-t", "1", "--ignore-eos", "--stop", seen)
            self.assertEqual((stopped["finish"], stopped["text"]), ("stop", row["text"][: row["text"].index(seen)]))

    def test_bench(self):
        for dtype, limit in (("fp32", 1e-4), ("bf16", 5e-2)):
            rows = json.loads(run("bench", "decode", self.model, "--B", "1", "3", "--repeats", "2", "--dtype", dtype, "--json").stdout)
            self.assertEqual([row["B"] for row in rows], [1, 3])
            for row in rows:
                self.assertLess(row["check_rel_l2"]["logits"], limit)
                self.assertEqual(row["repeats"], 2)
                self.assertTrue(row["machine"])
        self.assertIn("check ", run("bench", "decode", self.model, "--B", "1", "--repeats", "1").stdout)
        (row,) = json.loads(run("bench", "load", self.model, "--repeats", "2", "--json", "-").stdout)
        self.assertGreater(row["ratio_to_reading"], 0)

    def test_bench_decode_refuses_a_model_that_fails_its_check(self):
        weights = Vectors(self.model / "model.safetensors")
        name = "model.norm.weight"
        weights.set_floats(name, [float("nan")] * len(weights.floats(name)))
        weights.write(self.model / "model.safetensors")
        result = run("bench", "decode", self.model, "--B", "1", "--repeats", "1", "--dtype", "fp32", "--json", self.folder / "rows.json")
        self.check(result, 1)
        self.assertIn("nothing was timed", result.stderr)
        self.assertNotIn("tokens/s", result.stdout)
        self.assertFalse((self.folder / "rows.json").exists())

    def test_bench_train(self):
        config = ROOT / "configs/cyfa-bytes-2m.json"
        for words in ([], ["--dtype", "bf16"], ["--B", "4", "--accumulate", "2", "--recompute"]):
            result = run("bench", "train", config, "--T", "64", "--repeats", "2", *words, "--json")
            self.check(result, 0)
            (row,) = json.loads(result.stdout)
            self.assertEqual((row["repeats"], row["T"]), (2, 64))
            self.assertLess(row["check_rel_l2"]["loss"], 1e-3 if "bf16" in words else 1e-5)
            self.assertTrue(0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"])
        result = run("bench", "train", config, "--T", "16", "--B", "1", "--repeats", "0")
        self.check(result, 0)
        self.assertIn("check ", result.stdout)
        self.assertIn("tokens/s", result.stdout)


class Prepare(CliTest):
    def lines(self, name="in.jsonl", count=2000):
        random.seed(5)
        path = self.folder / name
        words = ["the", "clock", "moves", "what", "was", "written", "ünder", "slots"]
        with path.open("w") as file:
            for i in range(count):
                file.write(json.dumps({"id": i, "text": " ".join(random.choices(words, k=random.randrange(1, 400)))}) + "\n")
        return path

    def files(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def test_summary_and_json(self):
        path = self.lines(count=50)
        result = run("prepare", self.folder / "out", path)
        self.check(result, 0)
        self.assertRegex(result.stdout, r"out: \d+ tokens, 50 documents, 1 shard\n")
        (row,) = json.loads(run("prepare", self.folder / "again", path, "--end", "--json").stdout)
        manifest = json.loads((self.folder / "again/manifest.json").read_text())
        self.assertEqual(row["tokens"], manifest["tokens"])
        self.assertEqual((row["documents"], row["damaged"], row["resumed_shards"]), (50, 0, 0))
        self.assertEqual(manifest["marks"], {"begin": 256, "end": 257})
        tokens = (self.folder / "again/shard-00000.tokens").read_bytes()
        self.assertEqual(len(tokens), 2 * manifest["tokens"])
        first = json.loads(path.read_text().splitlines()[0])["text"].encode()
        self.assertEqual(struct.unpack(f"<{len(first) + 2}H", tokens[: 2 * len(first) + 4]), (256, *first, 257))

    def test_killed_runs_end_as_whole_ones(self):
        path = self.lines(count=12000)
        words = [path, "--shard-tokens", 200000, "--threads", 2, "--quiet"]
        self.check(run("prepare", self.folder / "whole", *words), 0)
        parts = self.folder / "parts"
        for round, kind in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
            process = subprocess.Popen([PROGRAM, "prepare", str(parts), *map(str, words)], stdout=subprocess.DEVNULL)
            end = time.monotonic() + 60
            while not (parts / f"shard-{4 * round + 3:05}.tokens").exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            process.send_signal(kind)
            process.wait()
        (row,) = json.loads(run("prepare", parts, *words, "--json").stdout)
        self.assertGreaterEqual(row["resumed_shards"], 3)
        self.assertEqual(self.files(parts), self.files(self.folder / "whole"))

    def test_damage(self):
        path = self.lines(count=20)
        path.write_bytes(path.read_bytes() + b'{"text": 3}\n{"other": "x"}\n[1]\n')
        result = run("prepare", self.folder / "out", path)
        self.check(result, 0)
        self.assertIn("in.jsonl: line 21, byte ", result.stderr)
        self.assertIn("left out: 3 damaged", result.stdout)
        self.check_error(run("prepare", self.folder / "strict", path, "--bad", "stop"), "in.jsonl: line 21, byte ")
        self.check_error(run("prepare", self.folder / "strict", path, "--no-begin"), "begin was 256", "another folder")
        self.check(run("prepare", self.folder / "strict", path, "--bad", "skip", "--threads", "1"), 0)
        self.assertEqual(self.files(self.folder / "strict"), self.files(self.folder / "out"))

    def test_bad_options(self):
        path = self.lines(count=3)
        out = self.folder / "out"
        self.check_error(run("prepare", out), "inputs")
        self.check_error(run("prepare", out, self.folder / "absent.txt"), "absent.txt")
        self.check_error(run("prepare", out, path, "--tokenizer", self.folder / "absent.model"), "absent.model")
        self.check_error(run("prepare", out, path, "--bos-id", "300"), "300", "258 tokens")
        self.check_error(run("prepare", out, path, "--shard-tokens", "0"), "--shard-tokens")
        self.check_error(run("prepare", out, path, "--bad", "what"), "--bad")
        self.check_error(run("prepare", out, path, "--text-field", "body"), "hold no text")
        self.assertFalse(out.exists())
        self.check(run("prepare", out, path), 0)
        self.check_error(run("prepare", out, path), "finished")
        self.check_error(run("prepare", self.folder, path), "other files")


class Train(CliTest):
    def setUp(self):
        super().setUp()
        text = self.folder / "text.txt"
        text.write_text("all work and no play makes jack a dull boy. " * 400)
        self.data = self.folder / "data"
        self.check(run("prepare", self.data, text, "--tokenizer", "bytes"), 0)
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps({"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2,
                                           "head_dim": 16, "num_slots": 16, "vocab_size": 258, "intermediate_size": 64,
                                           "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes"}))
        self.keys = [f"model={self.config}", f"data={self.data}", f"validation={self.data}", "steps=20", "batch=4", "context=32",
                     "warmup=2", "rate=3e-3", "log_every=1", "eval_batches=2"]

    def weights(self, name):
        return (self.folder / name / "checkpoints/step-00000020/model.safetensors").read_bytes()

    def test_a_killed_run_goes_on_bit_for_bit(self):
        self.check(run("train", self.folder / "whole", *self.keys), 0)
        self.begun("cut")
        self.assertNotIn("step-00000020", [path.name for path in (self.folder / "cut/checkpoints").iterdir()])
        self.check(run("train", "--resume", self.folder / "cut"), 0)
        self.assertEqual(self.weights("whole"), self.weights("cut"))
        rows = [json.loads(line) for line in (self.folder / "cut/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([row["step"] for row in rows], list(range(1, 21)))
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        self.assertIn("eval_loss", rows[-1])
        self.assertIn("slot_occupancy", rows[-1]["memory"])
        for name in ("recipe.toml", "manifest.json", "loss.svg"):
            self.assertTrue((self.folder / "cut" / name).exists())
        result = run("generate", self.folder / "cut/checkpoints/step-00000020", "-p", "all ", "-n", "5", "-q")
        self.check(result, 0)

    def test_a_signal_saves_and_leaves(self):
        keys = [key for key in self.keys if not key.startswith("steps")] + ["steps=100000"]
        process = subprocess.Popen([PROGRAM, "train", str(self.folder / "run"), *keys], stdout=subprocess.PIPE, encoding="utf-8")
        with process:
            for line in process.stdout:
                if line.startswith("step      3"):
                    process.send_signal(signal.SIGTERM)
                    break
            rest = process.stdout.read()
        self.assertEqual(process.returncode, 3)
        self.assertIn("--resume", rest)
        self.assertEqual(len(list((self.folder / "run/checkpoints").iterdir())), 1)

    def begun(self, name):
        """A run of 20 steps that is killed after step 5."""
        command = [PROGRAM, "train", str(self.folder / name), *self.keys, "save_every=5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
            for line in process.stdout:
                if line.startswith("saved step 5"):
                    process.kill()
        return self.folder / name

    def test_a_full_disk_leaves_the_last_checkpoint(self):
        self.check(run("train", self.folder / "whole", *self.keys), 0)
        folder = self.begun("full")
        before = sorted(path.name for path in (folder / "checkpoints").iterdir())

        def no_room():  # writing beyond this size fails as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))

        failed = subprocess.run([PROGRAM, "train", "--resume", str(folder)], capture_output=True, encoding="utf-8", preexec_fn=no_room,
                                timeout=300)
        self.check_error(failed, "step-")
        self.assertEqual(sorted(path.name for path in (folder / "checkpoints").iterdir()), before)
        self.check(run("train", "--resume", folder), 0)
        self.assertEqual(self.weights("whole"), self.weights("full"))

    def test_a_lost_shard_is_named(self):
        folder = self.begun("lost")
        shard = max(self.data.iterdir(), key=lambda path: path.stat().st_size)
        kept = shard.read_bytes()
        shard.unlink()
        self.check_error(run("train", "--resume", folder), shard.name)
        shard.write_bytes(kept[: len(kept) // 2])
        self.check_error(run("train", "--resume", folder), shard.name)
        shard.write_bytes(kept)
        self.check(run("train", "--resume", folder), 0)

    def test_what_cannot_be(self):
        run_folder = self.folder / "run"
        for absurd in ("steps=0", "batch=0", "batch=-4", "context=0", "accumulate=3", "clip=-1", "rate=-1", "rate=nan", "threads=-1",
                       "dtype=fp8", "device=tpu"):
            self.check_error(run("train", run_folder, *self.keys, absurd), absurd.split("=")[0])
        self.check_error(run("train", run_folder, *self.keys, "setps=3"), "setps")
        self.check_error(run("train", run_folder, *self.keys, "rate=x"), "rate")
        self.check_error(run("train", run_folder, *self.keys[2:], f"model={self.config}"), "data")
        self.check_error(run("train", run_folder, *self.keys, f"data={self.folder / 'absent'}"), "absent")
        self.check_error(run("train", self.folder / "long", *self.keys, "context=1000000"))
        self.check_error(run("train", "--resume", run_folder), "recipe.toml")
        self.check_error(run("train", run_folder, *self.keys, "rate=1e6", "clip=0", "warmup=0"), "step ")
        self.check_error(run("train", run_folder, *self.keys), "--resume")


class Demo(CliTest):
    def test_recall(self):
        result = run("demo", "recall", "--pairs", "4", "--png", self.folder / "recall.png", timeout=600)
        self.check(result, 0)
        self.assertIn("clock increments", result.stdout)
        self.assertTrue((self.folder / "recall.png").exists())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
