#!/usr/bin/env python3
"""Tests `cyfa eval` from outside: table, JSON, manifest, kept documents, interruption, errors. Usage: eval_test.py PROGRAM [arguments]"""

import json
import os
import signal
import subprocess
import time
import unittest

from harness import PROGRAM, ROOT, CliTest, run, shared_folder

MODEL = ROOT / "models/cyfa-4m"
ARC = [
    {"question": f"Which of the animals in the garden is number {i}?", "answerKey": "AB"[i % 2],
     "choices": {"text": ["the cat", f"the white rabbit with {i} gloves"], "label": ["A", "B"]}}
    for i in range(12)
]


class Eval(CliTest):
    def setUp(self):
        super().setUp()
        (self.folder / "arc_easy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ARC))
        text = "It was a very long passage that Alice had read, and at the end of it was a garden. "
        (self.folder / "lambada_openai.jsonl").write_text(json.dumps({"text": text * 3 + "garden"}) + "\n")
        (self.folder / "based_squad.jsonl").write_text(json.dumps({"text": "Alice saw the rabbit. Alice saw", "value": "the"}) + "\n")

    def eval(self, *arguments, status=0):
        result = run("eval", MODEL, *arguments, "--data", self.folder)
        self.check(result, status)
        return result

    def test_table_and_json(self):
        out = self.folder / "rows.json"
        result = self.eval("arc_easy", "lambada_openai", "based_squad", "--json", out)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["task", "metric", "value", "std", "error", "documents"])
        self.assertEqual([line.split()[0] for line in lines[1:]], ["arc_easy", "acc_norm", "lambada_openai", "perplexity", "based_squad"])
        manifest, *rows = json.loads(out.read_text())
        self.assertEqual(manifest["table"], "manifest")
        self.assertEqual((manifest["bos"], manifest["prefix_token"], manifest["max_length"], manifest["seed"]), (True, 1, 2048, 42))
        self.assertEqual(set(manifest["truncation"].items()),
                         {("arc_easy", "left"), ("lambada_openai", "left"), ("based_squad", "left")})
        for key in ("commit", "version", "machine", "threads", "dtype", "limit"):
            self.assertIn(key, manifest)
        self.assertGreater(manifest["peak_memory_mb"], 0)
        self.assertEqual(sorted(manifest["files"]), ["arc_easy.jsonl", "based_squad.jsonl", "lambada_openai.jsonl"])
        for key in ("model_hash", "tokenizer_hash"):
            self.assertRegex(manifest[key], "^[0-9a-f]{16}$")
        self.assertEqual(rows[0]["documents"], 12)
        self.assertGreater(rows[0]["stderr"], 0)
        self.assertIsNone(rows[-1]["stderr"])  # of one document

    def test_texts(self):
        book = ROOT / "data/alice/alice.txt"
        text = self.folder / "part.txt"
        text.write_text(book.read_text()[:6000])
        rows = json.loads(self.eval(f"text:{text}", f"positions:{text}@600", "--json").stdout)[1:]
        self.assertEqual([row["metric"] for row in rows], ["word_perplexity", "byte_perplexity", "bits_per_byte", "loss_0_598"])
        self.assertTrue(0.5 < rows[2]["value"] < 4, rows)
        self.assertTrue(2 < rows[3]["value"] < 6, rows)

    @unittest.skipUnless((shared_folder() / "eval").is_dir(), "no shared/eval; set CYFA_SHARED")
    def test_the_samples_of_the_shared_folder(self):
        result = run("eval", MODEL, "samples", "--data", shared_folder() / "eval", "--limit", 2, "--json")
        self.check(result, 0)
        rows = json.loads(result.stdout)[1:]
        self.assertEqual([(row["task"], row["documents"], row["of"]) for row in rows],
                         [(f"{name}_sample", 2, 1000) for name in ("squad", "drop", "nq")])

    def test_kept_documents_and_their_run(self):
        out = self.folder / "out"
        self.eval("arc_easy", "--limit", 5, "-o", out)
        samples = (out / "samples_arc_easy.jsonl").read_text().splitlines()
        self.assertEqual(len(samples), 6)
        self.assertEqual(len(json.loads(samples[1])["log_likelihoods"]), 2)
        whole = json.loads(self.eval("arc_easy", "--json").stdout)[1]
        again = json.loads(self.eval("arc_easy", "-o", out, "--json").stdout)[1]
        self.assertEqual((again["resumed"], again["value"], again["stderr"]), (5, whole["value"], whole["stderr"]))
        error = self.eval("arc_easy", "-o", out, "--bos", "never", status=2).stderr
        self.assertIn("bos", error)
        self.assertTrue((out / "results.json").exists())

    def test_ctrl_c_keeps_documents(self):
        out = self.folder / "out"
        (self.folder / "arc_easy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ARC * 60))
        command = [PROGRAM, "eval", MODEL, "arc_easy", "--data", self.folder, "-o", out, "--batch-tokens", 1, "-q"]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        samples = out / "samples_arc_easy.jsonl"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (samples.exists() and samples.read_text().count("\n") > 3):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3)
        done = samples.read_text().count("\n") - 1
        self.assertTrue(3 <= done < 720, done)
        row = json.loads(self.eval("arc_easy", "-o", out, "-q", "--json").stdout)[1]
        self.assertGreaterEqual(row["resumed"], done)
        self.assertEqual(row["value"], json.loads(self.eval("arc_easy", "-q", "--json").stdout)[1]["value"])

    def test_errors(self):
        cases = [
            (["arc_esy"], "did you mean arc_easy?"),
            (["piqa"], "baber/piqa"),
            (["text"], "text:FILE"),
            (["arc_easy@5"], "has no length"),
            (["text:" + str(self.folder / "none.txt")], "none.txt"),
            (["arc_easy", "--max-length", 3], "raise --max-length"),
            ([], "no task"),
        ]
        for arguments, words in cases:
            with self.subTest(arguments):
                self.assertIn(words, self.eval(*arguments, status=2).stderr)
        error = self.eval("paper", status=2).stderr  # all that is missing, each with its home
        for words in ("lacks 11 files", "cimec/lambada", "hazyresearch/based-swde-v2", "hazyresearch/based_drop", "WikiText-2"):
            self.assertIn(words, error)
        self.assertNotIn("based-squad", error)  # is there
        self.check(run("eval"), 2)
        environment = os.environ | {"CYFA_EVAL_DATA": str(self.folder)}
        result = subprocess.run([PROGRAM, "eval", MODEL, "arc_easy", "--limit", "2", "-q"], env=environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("hazyresearch/based-fda", self.eval("based_fda", status=2).stderr)

    def test_the_list_of_tasks(self):
        result = run("eval", "--tasks")
        self.check(result, 0)
        for name in ("wikitext", "lambada_standard", "based_swde", "positions:FILE[@LENGTH]"):
            self.assertIn(name, result.stdout)


if __name__ == "__main__":
    unittest.main()
