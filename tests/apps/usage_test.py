#!/usr/bin/env python3
"""Tests how the program takes its arguments: names, numbers, help, errors, pipes. Usage: usage_test.py PROGRAM [unittest arguments]"""

import json
import os
import re
import shutil
import subprocess
import unittest

from harness import MODELS, PROGRAM, ROOT, CliTest, run

TINY_CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16,
               "num_slots": 8, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes"}
# What no message may contain: names of libraries' sources, types, functions and exceptions.
LIBRARY_WORDS = re.compile(r"\.cpp|\.cc\b|\.hpp|std::|basic_|json\.exception|enforce fail|CLI::|\bINT\b|\bUINT\b|\bFLOAT\b|\bTEXT:|"
                           r"subcommand|9223372036854775808|e\+30[78]|17976931348")


def help_of(*command):
    return run(*command, "--help").stdout


def commands(*command):
    """Every command without commands of its own, as a tuple of words."""
    children = re.search(r"^Commands:\n((?:  .*\n)+)", help_of(*command), re.MULTILINE)
    if not children:
        yield command
        return
    for name in re.findall(r"^  (\w+)", children[1], re.MULTILINE):
        yield from commands(*command, name)


def options(command):
    """(name, value's name) of every option of a command; the value's name is empty for a flag."""
    section = re.search(r"^Options:\n((?:  .*\n)+)", help_of(*command), re.MULTILINE)[1]
    for line in section.splitlines():
        found = re.match(r"  (?:-\w, )?(--[\w-]+)(?:, --[\w-]+)?(?: ([\w\[\]]+)(?:\.\.\.)?)?(?:  |$)", line)
        if found:
            yield found[1], found[2] or ""


def arguments(command):
    """Enough arguments for the command to reach the check of an option's value."""
    section = re.search(r"^Arguments:\n((?:  .*\n)+)", help_of(*command), re.MULTILINE)
    return ["x"] * len(re.findall(r"\[required\]", section[1])) if section else []


class Names(CliTest):
    def test_the_nearest_name_is_offered(self):
        self.check_error(run("modles"), 'no command is called "modles"; did you mean models?', "cyfa --help")
        self.check_error(run("bench", "decod"), "did you mean decode?", "cyfa bench --help")
        self.check_error(run("generate", "x", "--thread", "4"), 'there is no option "--thread"; did you mean --threads?')
        self.check_error(run("generate", "x", "--thread=4"), "did you mean --threads?")
        self.check_error(run("--verison"), "did you mean --version?")
        self.check_error(run("bench", "op", "--backend", "portabel"), "auto, reference, portable or sm90; did you mean portable?")
        self.check_error(run("bench", "op", "--dtype", "FP32"), "did you mean fp32?")
        self.check_error(run("bench", "decode", "x", "--engine", "portabl"), "did you mean portable?")
        self.check_error(run("bench", "op", "--op", "delta_rul"), "did you mean delta_rule?")
        self.check_error(run("train", "x", "stpes=3"), 'no key "stpes"; did you mean steps?')
        self.check_error(run("train", "x", "model=x", "data=x", "frobnicate=3"), "health_every")  # nothing is near: all are listed
        self.check_error(run("init", "cyfa-400", self.folder / "x"), 'no model is called "cyfa-400"', "did you mean cyfa-400m?",
                         "cyfa models")
        self.assertNotIn("did you mean", run("frobnicate").stderr)
        self.assertNotIn("did you mean", run("bench", "op", "--device", "gpu").stderr)

    def test_models_have_names(self):
        """NAME, configs/NAME.json and a path are the same model, in every command and from every working directory."""
        def here(*words):
            return subprocess.run([PROGRAM, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300)

        names = {row["config"] for row in json.loads(here("models", "--json").stdout)}
        self.assertEqual(names, {path.stem for path in (ROOT / "configs").glob("*.json")})
        weights = []
        for i, model in enumerate(("cyfa-bytes-2m", "configs/cyfa-bytes-2m.json", ROOT / "configs/cyfa-bytes-2m.json")):
            self.check(here("init", model, f"m{i}"), 0)
            weights.append((self.folder / f"m{i}/model.safetensors").read_bytes())
        self.assertTrue(weights[0] == weights[1] == weights[2])
        self.check(here("doctor", "cyfa-bytes-2m"), 0)
        self.assertEqual(json.loads(here("models", "m0", "cyfa-9m", "--json").stdout)[1]["config"], "cyfa-9m")
        (row,) = json.loads(here("bench", "train", "cyfa-bytes-2m", "--B", 1, "--T", 8, "--repeats", 1, "--json").stdout)
        self.assertEqual(row["model"], "cyfa-bytes-2m")
        (self.folder / "a.txt").write_text("some text to learn, " * 20)
        self.check(here("prepare", "data", "a.txt"), 0)
        for i, model in enumerate(("cyfa-bytes-2m", "configs/cyfa-bytes-2m.json")):
            self.check(here("train", f"run{i}", f"model={model}", "data=data", "steps=1", "batch=1", "context=8", "-q"), 0)
        self.check(here("train", "run2", "-r", "bytes", "data=data", "steps=1", "batch=1", "context=8", "-q"), 0)
        self.check_error(here("train", "run3", "-r", "byts", "data=data"), "no recipe is called", "did you mean bytes?")

    def test_a_path_comes_before_a_name(self):
        (self.folder / "cyfa-9m").write_text(json.dumps(TINY_CONFIG))
        result = subprocess.run([PROGRAM, "models", "cyfa-9m", "--json"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(json.loads(result.stdout)[0]["hidden_size"], 32)

    def test_an_installed_program_has_its_own_configs(self):
        (self.folder / "bin").mkdir()
        (self.folder / "share/cyfa/configs").mkdir(parents=True)
        program = shutil.copy(PROGRAM, self.folder / "bin/cyfa")
        (self.folder / "share/cyfa/configs/only.json").write_text(json.dumps(TINY_CONFIG))
        result = subprocess.run([program, "models", "--json"], cwd="/", capture_output=True, text=True)
        self.assertEqual([row["config"] for row in json.loads(result.stdout)], ["only"])
        self.check(subprocess.run([program, "init", "only", self.folder / "m"], cwd="/", capture_output=True, text=True), 0)

    def test_a_folder_is_no_config(self):
        self.check_error(run("init", MODELS[0], self.folder / "x"), "wanted a config file")
        self.check_error(run("models", self.folder), str(self.folder), "no config")
        for command in (["init", "", self.folder / "x"], ["doctor", ""], ["models", ""], ["bench", "decode", ""]):
            self.check_error(run(*command), "empty")


class Numbers(CliTest):
    def test_every_number_is_read_strictly(self):
        """Every integer option refuses what is no decimal integer of 64 bits, every other number what is not finite, in words."""
        seen = 0
        for command in commands():
            words = arguments(command)
            for name, value in options(command):
                if value == "N":
                    always, others = ("99999999999999999999", "0x10"), ("-99999999999999999999", "1e3", "3.5", "7x", "x", "", " 5", "+5")
                elif value == "X":
                    always, others = ("nan", "inf"), ("-nan", "-inf", "1e999", "0x1p3", "1.5x", "x", "")
                else:
                    continue
                seen += 1
                for text in (*always, others[seen % len(others)]):  # one of the others in turn: every value starts a process
                    result = run(*command, *words, f"{name}={text}" if text else name, *([] if text else [""]))
                    self.check_error(result, name, "integer" if value == "N" else "number")
                    self.assertNotRegex(result.stderr, LIBRARY_WORDS)
                    if text:
                        self.assertIn(f'got "{text}"', result.stderr)
        self.assertGreater(seen, 35)

    def test_ranges_are_said(self):
        self.check_error(run("bench", "op", "--repeats", "500000"), "--repeats: ", 'got "500000"', "an integer from 0 to 100000")
        self.check_error(run("show", "clock", "--tokens", "5"), "an integer from 20 to 4000")
        self.check_error(run("init", "x", "x", "--seed", "-1"), "an integer of at least 0")
        self.check_error(run("init", "x", "x", "--seed", "18446744073709551616"), "an integer of at least 0, below 2^64")
        self.check_error(run("bench", "train", "x", "--B", "0"), "an integer of at least 1")
        self.check_error(run("demo", "recall", "--rate", "0"), "a number above 0")

    def test_a_leading_zero_is_not_octal(self):
        sizes = ["--T", "010", "--H", "1", "--K", "16", "--V", "16", "--M", "16"]
        (row,) = json.loads(run("bench", "op", *sizes, "--pass", "forward", "--repeats", "1", "--json").stdout)
        self.assertEqual(row["T"], 10)

    def test_the_largest_seed_is_kept(self):
        for seed in ("18446744073709551615", "18446744073709551614"):
            self.check(run("init", "cyfa-bytes-2m", self.folder / seed, "--seed", seed), 0)
        first, second = ((path / "model.safetensors").read_bytes() for path in sorted(self.folder.iterdir()))
        self.assertNotEqual(first, second)

    def test_more_than_memory_is_an_error_in_words(self):
        for words in (["bench", "decode", "cyfa-bytes-2m", "--B", "100000000"], ["bench", "train", "cyfa-bytes-2m", "--T", "4000000000"],
                      ["bench", "decode", "cyfa-bytes-2m", "--B", "9000000000000000000"],
                      ["bench", "op", "--B", "16777216", "--T", "16777216", "--H", "16777216"]):
            result = run(*words, timeout=60)
            self.check_error(result, "memory")
            self.assertNotRegex(result.stderr, LIBRARY_WORDS)


class Help(CliTest):
    def test_help_is_a_command(self):
        for words, same in ((["help"], ["--help"]), (["help", "init"], ["init", "--help"]), (["help", "bench"], ["bench", "--help"]),
                            (["help", "bench", "op"], ["bench", "op", "--help"]), (["bench", "help"], ["bench", "--help"]),
                            (["bench", "help", "op"], ["bench", "op", "--help"])):
            result = run(*words)
            self.check(result, 0)
            self.assertEqual(result.stdout, run(*same).stdout)
        self.check_error(run("help", "inti"), "did you mean init?")
        # Where no command can stand, help is a word like any other.
        self.check_error(run("init", "help"), "folder is missing")

    def test_without_a_command(self):
        result = run()
        self.check(result, 2)
        self.assertEqual((result.stdout, result.stderr), ("", help_of()))
        self.check_error(run("bench"), "a command is missing: op, decode, prefill, load, train, state", "cyfa bench --help")

    def test_every_help_is_free_of_the_library(self):
        for command in ((), ("bench",), ("verify",), ("show",), ("demo",), *commands()):
            text = help_of(*command)
            self.assertNotRegex(text, LIBRARY_WORDS, command)
            self.assertNotRegex(text, r"\{|\}|Excludes|Needs|REQUIRED|SUBCOMMAND| in \[[-\d]", command)
            self.assertIn("Exit status:", text)
            if command not in (("bench",), ("verify",), ("show",), ("demo",)):
                self.assertIn("\nExamples:\n  cyfa", text, command)
                for example in re.findall(r"^  (cyfa .*?)  +#", text.split("\nExamples:\n")[1], re.MULTILINE):
                    self.assertTrue(example.startswith("cyfa " + " ".join(command)), example)

    def test_every_option_says_its_default(self):
        """An option with a value has a default in its help, or its text says what happens without it (a file that is then not written)."""
        optional = {"--json", "--out", "--prompt-file", "--prompt-lines", "--stop", "--save-samples", "--save-state", "--load-state",
                    "--tokenizer"}
        for command in commands():
            text = help_of(*command)
            for name, value in options(command):
                entry = re.search(rf"^  (?:-\w, )?{name}\b.*\n(?:      .*\n)*", text, re.MULTILINE)[0]
                if value and name not in optional and "[required]" not in entry:
                    self.assertIn("[default:", entry, f"{command} {name}")


class Errors(CliTest):
    def test_what_is_missing_or_too_much_is_said(self):
        self.check_error(run("init"), "model is missing (", "cyfa init --help")
        self.check_error(run("init", "cyfa-9m"), "folder is missing (")
        self.check_error(run("init", "a", "b", "c"), 'unexpected argument "c"', "model, folder")
        self.check_error(run("bench", "op", "--T"), "--T needs a value (Tokens per sequence)")
        self.check_error(run("bench", "op", "--T", "1", "--T", "2"), "--T is given 2 times, wanted once")
        self.check_error(run("bench", "op", "--scaling=maybe"), "--scaling takes no value")
        self.check_error(run("models", "--kinds", "x"), "--kinds", "models", "cannot be given together")
        self.check_error(run("models", "--kinds", "--describe"), "--kinds", "--describe", "cannot be given together")

    def test_no_error_names_a_library(self):
        """Files of every wrong kind in every place for a path."""
        (self.folder / "text.txt").write_text("no JSON, no safetensors, no TOML and no SentencePiece")
        (self.folder / "bytes").write_bytes(bytes(range(256)))
        (self.folder / "list.json").write_text("[1, 2]")
        (self.folder / "types.json").write_text(json.dumps({"model_type": 5, "hidden_size": "many"}))
        (self.folder / "empty").write_text("")
        (self.folder / "folder").mkdir()
        self.check(run("init", "cyfa-bytes-2m", self.folder / "good"), 0)
        good = self.folder / "good"
        configs = lambda path: (["models", path], ["doctor", path], ["init", path, self.folder / "new"])  # noqa: E731
        all_of = lambda path: (*configs(path), ["bench", "decode", path], ["bench", "train", path], ["bench", "load", path],  # noqa: E731
                               ["bench", "state", path, good / "config.json"], ["generate", path, "-n", "1"], ["verify", "op", path],
                               ["verify", "model", path], ["train", self.folder / "run", "-r", path], ["train", path, "--resume"],
                               ["init", "cyfa-bytes-2m", self.folder / "new", "--tokenizer", path])
        absent = os.fsencode(self.folder) + b"/\xff\xfe"
        lines = [*all_of(self.folder / "text.txt"), *all_of(self.folder / "folder"), *all_of(absent), ["bench", "state", good, "folder"]]
        for name in ("bytes", "list.json", "types.json", "empty", "text.txt/x"):
            lines += [configs(self.folder / name)[0]]
        for words in lines:
            result = subprocess.run([PROGRAM, *(word if isinstance(word, bytes) else str(word) for word in words)], capture_output=True,
                                    cwd=self.folder, encoding="utf-8", errors="replace", timeout=120)
            with self.subTest(words=words):
                self.check_error(result)
                self.assertNotRegex(result.stderr.replace(str(self.folder), ""), LIBRARY_WORDS)
        self.assertFalse((self.folder / "new").exists())

    def test_files_that_cannot_be_written_are_refused_before_the_work(self):
        for target in ("absent/rows.json", "text/rows.json"):
            (self.folder / "text").write_text("x")
            result = run("bench", "op", "--json", self.folder / target)
            self.check_error(result, "--json", "cannot be written")
            self.assertEqual(result.stdout, "")


class Pipes(CliTest):
    def test_a_closed_pipe_ends_the_program_quietly(self):
        for ignored in ("", "trap '' PIPE; "):  # some parents ignore SIGPIPE
            script = f"{ignored}{{ '{PROGRAM}' models --describe; echo $? > '{self.folder}/status'; }} | head -c 1 > /dev/null"
            result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
            self.assertEqual(result.stderr.replace("Broken pipe", ""), result.stderr)
            self.assertNotIn("cyfa: error", result.stderr)
            self.assertEqual((self.folder / "status").read_text(), "141\n")

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "models"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        self.check_error(subprocess.CompletedProcess([], result.returncode, "", result.stderr), "writing to the standard output failed")


if __name__ == "__main__":
    unittest.main()
