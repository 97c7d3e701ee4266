#!/usr/bin/env python3
"""Tests the program as a whole, and doctor from outside. Usage: general_test.py PROGRAM [unittest arguments]"""

import json
import re
import shutil
import unittest

from harness import MODELS, ROOT, TINY, CliTest, run


class General(CliTest):
    def test_help_and_version(self):
        for command in ("", "doctor", "verify op", "verify model", "bench op", "bench decode", "bench prefill", "bench train", "bench load",
                        "bench state", "show clock", "show loss", "show curves", "models", "init", "generate", "prepare", "train", "demo recall"):
            result = run(*command.split(), "--help")
            self.check(result, 0)
            self.assertIn("Usage:", result.stdout)
            self.assertIn("Exit status:", result.stdout)
            self.assertIn("Examples:", result.stdout, command)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 140, command)
        self.assertIn("3 stopped by a signal", run("train", "--help").stdout)
        self.assertRegex(run("--version").stdout, r"^cyfa \d+\.\d+\.\d+\n$")

    def test_bad_options_are_explained(self):
        self.check_error(run("frobnicate"), 'no command is called "frobnicate"', "cyfa --help")
        self.check_error(run("bench", "frobnicate"), 'no command is called "frobnicate"', "cyfa bench --help")
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
        for command in ("doctor", "verify op", "verify model", "bench op", "bench decode", "bench prefill", "bench train", "bench load",
                        "bench state", "models", "init", "generate", "prepare"):
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


if __name__ == "__main__":
    unittest.main()
