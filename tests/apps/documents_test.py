#!/usr/bin/env python3
"""Runs the examples of the documents and of the program's help. Usage: documents_test.py PROGRAM [unittest arguments]

Examples are lines in the blocks of the documents that begin with `build/cyfa` (or `$ build/cyfa`), and those under "Examples:" in a help.
Each runs in a folder of its own that holds what a reader has: build/cyfa, configs, models, recipes, tests/vectors, some texts, and a
checkpoint DIR, tokens data and a run `run`. What takes long is shortened (SHORTER); what needs a GPU is not run. Every mention of the
program in the documents, in a block or between backquotes, may name only commands and options that exist.
"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from harness import PROGRAM, ROOT, CliTest, run

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
             *sorted((ROOT / "docs/mixers").glob("*.md"))]
GROUPS = ("bench", "verify", "show", "demo")

# Pattern of a command line, and what makes it shorter: (text to replace, by what) and words to append.
SHORTER = [
    (r"bench decode", (r"(configs/)?cyfa-400m(\.json)?", "cyfa-bytes-2m"), "--repeats 1"),
    (r"bench prefill", None, "--repeats 1"),
    (r"bench op", None, "--repeats 1"),
    (r"bench load", None, "--repeats 1"),
    (r"bench train", (r"--repeats 10", ""), "--repeats 1"),
    (r"bench train", (r"--T \d+", "--T 64"), ""),
    (r"bench state", (r"--tokens \d+", "--tokens 20"), ""),
    (r"train .*data=", (r"steps=\d+ ?", ""), "steps=1 batch=1 context=16"),
    (r"train .*--resume", (r"steps=\d+", "steps=2"), ""),
    (r"train .*--from", (r"--from \d+", "--from 1"), "steps=2"),
    (r"show loss", (r"runs/\w+", "run"), ""),
    (r"demo recall", None, "--steps 1"),
    (r"probe", (r"--(tokens|sequences|held-out) \d+", ""), "--tokens 32 --sequences 2 --held-out 1 --page-tokens 16"),
    (r"generate", (r" -n \d+", ""), "-n 3"),
    (r"eval .*needles", (r"(--lengths 1024)( \d+)*|--limit \d+", r"\1"), "--limit 1"),
]


def blocks(text):
    """The lines of all blocks between ``` and ```."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()


def document_examples():
    for path in DOCUMENTS:
        for line in blocks(path.read_text()):
            found = re.match(r"(?:\$ )?build/(cyfa .*?)(?:\s+#.*)?$", line)
            if found:
                yield path.name, found[1]


def commands(*command):
    children = re.search(r"^Commands:\n((?:  .*\n)+)", run(*command, "--help").stdout, re.MULTILINE)
    for name in re.findall(r"^  (\w+)", children[1], re.MULTILINE) if children else []:
        yield from commands(*command, name)
    yield command


def help_examples():
    for command in commands():
        text = run(*command, "--help").stdout
        if "\nExamples:\n" in text:
            for line in re.findall(r"^  (cyfa.*?)  +#", text.split("\nExamples:\n")[1], re.MULTILINE):
                yield "cyfa " + " ".join((*command, "--help")), line.strip()


def shortened(line):
    for pattern, change, more in SHORTER:
        if re.search(rf"cyfa {pattern}", line):
            if change:
                line = re.sub(*change, line)
            if more and more.split()[0] not in line.split():
                line = f"{line} {more}"
    return line


class Examples(CliTest):
    @classmethod
    def setUpClass(cls):
        """What the examples read, made once."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.given = pathlib.Path(folder.name)
        text = (ROOT / "README.md").read_text()
        for name in ("text.txt", "mytext.txt", "README.md", "texts/a.txt", "texts/b.txt"):
            (cls.given / name).parent.mkdir(exist_ok=True)
            (cls.given / name).write_text(text)
        (cls.given / "book.txt").write_text(3 * text)
        (cls.given / "prompts.txt").write_text("Once\nupon a time\n")
        (cls.given / "books.jsonl").write_text(json.dumps({"body": text}) + "\n")
        for name in ("configs", "models", "recipes", "tests"):
            (cls.given / name).symlink_to(ROOT / name)
        (cls.given / "build").mkdir()
        (cls.given / "build/cyfa").symlink_to(PROGRAM)

        def here(*words):
            subprocess.run([PROGRAM, *words], cwd=cls.given, check=True, capture_output=True, timeout=300)

        here("init", "cyfa-bytes-2m", "DIR")
        here("prepare", "data", "text.txt")
        here("train", "run", "-r", "bytes", "data=data", "steps=1", "batch=1", "context=16")
        checkpoint = cls.given / "run/checkpoints"
        (checkpoint / "step-00000300").symlink_to(checkpoint / "step-00000001")  # the last one of the recipe

    def own_folder(self, line):
        """A folder with all that is given, except what the command makes."""
        words = shlex.split(line)
        made = {"init": words[3:4], "prepare": words[2:3], "train": [] if "--resume" in words else words[2:3]}.get(words[1], [])
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for path in self.given.iterdir():
            if path.name in made:
                continue
            if path.name == "run":
                shutil.copytree(path, folder / path.name, symlinks=True)  # resuming changes it
            else:
                (folder / path.name).symlink_to(path)
        return folder

    def run_example(self, where, line):
        with self.subTest(where=where, line=line):
            short = shortened(line)
            result = subprocess.run(["bash", "-c", "build/" + short], cwd=self.own_folder(line), capture_output=True, encoding="utf-8",
                                    errors="replace", timeout=300, stdin=subprocess.DEVNULL)
            # A model that has trained for one step recalls little: a failed check.
            self.check(result, 1 if " demo recall" in line else 0)

    def test_examples_run(self):
        examples = {}
        for where, line in [*document_examples(), *help_examples()]:
            examples.setdefault(line, where)
        ran = 0
        for line, where in examples.items():
            if "cuda" in line or any(word in line for word in ("/tmp/m", "FOLDER", "corpus/", "tokenizer.model", "--data")):
                continue  # a GPU, the reader's own files, or the downloaded tokenizer
            self.run_example(where, line)
            ran += 1
        self.assertGreater(ran, 40)

    def test_the_story_of_the_readme(self):
        """A new model that babbles, in /tmp."""
        lines = [line for where, line in document_examples() if where == "README.md" and "/tmp/m" in line]
        self.assertEqual(len(lines), 2)
        for line in lines:
            line = line.replace("/tmp/m", str(self.folder / "m"))
            self.check(subprocess.run(["bash", "-c", "build/" + shortened(line)], cwd=self.given, capture_output=True, encoding="utf-8",
                                      errors="replace", timeout=300), 0)


class Mentions(CliTest):
    def test_commands_and_options_exist(self):
        helps = {" ".join(command): run(*command, "--help").stdout for command in commands()}
        seen = 0
        for path in DOCUMENTS:
            text = path.read_text()
            mentions = [line for line in blocks(text) if re.match(r"(\$ )?build/cyfa ", line)]
            mentions += re.findall(r"`((?:build/)?cyfa [a-z][^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
            for mention in mentions:
                words = re.sub(r"^(\$ )?(build/)?cyfa ", "", " ".join(mention.split())).split(" #")[0].split(" | ")[0].split()
                if words[0] in ("help", "tokens", "COMMAND", "models/"):
                    continue
                with self.subTest(document=path.name, mention=mention):
                    command = " ".join(words[:2]) if words[0] in GROUPS and len(words) > 1 else words[0]
                    self.assertIn(command, helps)
                    for option in words:
                        if option.startswith("-") and option != "-":
                            name = option.split("=")[0]
                            self.assertRegex(helps[command], rf"(?m)^  (?:-\w, |--[\w-]+, )?{name}\b|^  {name},", option)
                    seen += 1
        self.assertGreater(seen, 40)

    def test_json_rows_have_the_documented_keys(self):
        """docs/cli.md lists the keys of every command's rows."""
        text = (ROOT / "docs/cli.md").read_text()
        folder = self.folder / "m"
        self.check(run("init", "cyfa-bytes-2m", folder), 0)
        (self.folder / "a.txt").write_text("a text of some length")
        vectors = ROOT / "tests/vectors"
        rows = {
            "models": run("models", "cyfa-9m", "--json"),
            "doctor": run("doctor", folder, "--json"),
            "verify op": run("verify", "op", vectors / "op_plain.safetensors", "--backend", "portable", "--json"),
            "verify model": run("verify", "model", vectors / "model_tiny", "--json"),
            "bench op": run("bench", "op", "--T", 16, "--H", 1, "--K", 16, "--V", 16, "--M", 16, "--repeats", 1, "--json"),
            "bench decode": run("bench", "decode", folder, "--B", 1, "--repeats", 1, "--json"),
            "bench prefill": run("bench", "prefill", folder, "--T", 4, "--repeats", 1, "--json"),
            "bench train": run("bench", "train", "cyfa-bytes-2m", "--B", 1, "--T", 8, "--repeats", 1, "--json"),
            "bench load": run("bench", "load", folder, "--repeats", 1, "--json"),
            "bench state": run("bench", "state", folder, self.folder / "a.txt", "--json"),
            "generate": run("generate", folder, "-p", "x", "-n", 1, "--json"),
            "prepare": run("prepare", self.folder / "data", self.folder / "a.txt", "--json"),
        }
        for command, result in rows.items():
            with self.subTest(command=command):
                section = re.search(rf"^## cyfa {command}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
                prose = re.sub(r"<!-- options.*?<!-- end|^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
                for key in json.loads(result.stdout)[0]:
                    self.assertRegex(prose, rf"\b{key}\b", f"docs/cli.md does not say what {key} is")


if __name__ == "__main__":
    unittest.main()
