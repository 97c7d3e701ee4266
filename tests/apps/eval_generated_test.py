#!/usr/bin/env python3
"""Tests `cyfa eval` on what it generates, RULER, and on LongBench's files. Usage: eval_generated_test.py PROGRAM [unittest arguments]"""

import difflib
import json
import os
import subprocess
import unittest

from harness import PROGRAM, CliTest, run

CONFIG = {"model_type": "cyclic_flow_attention", "vocab_size": 258, "hidden_size": 64, "num_hidden_layers": 1, "num_heads": 1,
          "head_dim": 64, "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes", "max_position_embeddings": 2048}


class EvalGenerated(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        config = self.folder / "config.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        self.check(run("init", config, self.model), 0)

    def rows(self, *arguments):
        result = run("eval", self.model, "-q", "--json", "-", *arguments)
        self.check(result, 0)
        return [row for row in json.loads(result.stdout) if row["table"] == "results"]

    def samples(self, folder, *arguments):
        self.rows(*arguments, "--save-samples", folder)
        return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}

    def test_a_table_of_scores_against_lengths(self):
        result = run("eval", self.model, "needles", "--lengths", "1024", "2048", "--limit", "1")
        self.check(result, 0)
        self.assertIn("niah_single_1@2048", result.stdout)
        header = next(line for line in result.stdout.splitlines() if line.startswith("score by length"))
        self.assertEqual(header.split()[3:], ["1024", "2048"])
        self.assertIn("documents", result.stdout)
        rows = self.rows("niah_single_1", "vt@2500", "--lengths", "1024", "2048", "--limit", "2")
        self.assertEqual([row["task"] for row in rows], ["niah_single_1@1024", "niah_single_1@2048", "vt@2500"])
        self.assertTrue(all(row["documents"] == 2 and row["of"] == 500 for row in rows))

    def test_equal_seeds_make_equal_samples(self):
        task = ["niah_single_2@1500", "cwe@3000", "--limit", "3"]
        one = self.samples(self.folder / "one", *task)
        self.assertEqual(sorted(one), ["cwe-3000.jsonl", "niah_single_2-1500.jsonl"])
        self.assertEqual(one, self.samples(self.folder / "two", *task, "--batch", "1", "--threads", "1"))
        other = self.samples(self.folder / "other", *task, "--seed", "7")
        self.assertTrue(all(one[name] != other[name] for name in one))
        for line in one["niah_single_2-1500.jsonl"].splitlines():
            sample = json.loads(line)
            self.assertLessEqual(sample["length"], 1500)
            self.assertEqual(len((sample["input"] + sample["answer_prefix"]).encode()) + 128, sample["length"])

    def test_samples_of_a_file(self):
        made = self.folder / "niah_single_1"
        score = self.rows("niah_single_1@1024", "--limit", "2", "--save-samples", made)[0]
        file = next(made.iterdir())
        self.assertEqual(self.rows(f"ruler_file:{file}")[0]["value"], score["value"])
        # As RULER writes it: the folder has the name of the task.
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        plain = made / "validation.jsonl"
        plain.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "task"}) + "\n" for line in lines), encoding="utf-8")
        self.assertEqual(self.rows(f"ruler_file:{plain}")[0]["documents"], 2)
        for damaged in ("", "{}", "[]", '{"input": "x"}', '{"input": "x", "outputs": []}', '{"input": "x", "outputs": ["y"], "task": "z"}'):
            plain.write_text(damaged + "\n", encoding="utf-8")
            self.check_error(run("eval", self.model, f"ruler_file:{plain}"), "validation.jsonl")
        self.check_error(run("eval", self.model, f"ruler_file:{self.folder}/none.jsonl"), "none.jsonl")

    def test_haystacks(self):
        texts = self.folder / "texts"
        texts.mkdir()
        (texts / "a.txt").write_text("Once there was a cat. It slept. ", encoding="utf-8")
        (texts / "b.jsonl").write_text('{"text": "Then it woke."}\n{"text": "It ran."}\n', encoding="utf-8")
        made = self.samples(self.folder / "made", "niah_single_2@1024", "--limit", "1", "--haystack", texts)
        self.assertIn("It slept. Then it woke. It ran. Once there was a cat.", made["niah_single_2-1024.jsonl"])
        (texts / "a.txt").write_text(" \n", encoding="utf-8")
        self.check_error(run("eval", self.model, "niah_single_2", "--haystack", texts / "a.txt"), "without words")
        # Results with one haystack are none with another.
        (texts / "a.txt").write_text("Once there was a dog. ", encoding="utf-8")
        kept = [self.model, "niah_single_2@1024", "--limit", "1", "-q", "-o", self.folder / "kept"]
        self.check(run("eval", *kept, "--haystack", texts), 0)
        self.check_error(run("eval", *kept), "haystack")
        manifest = json.loads((self.folder / "kept/results.json").read_text(encoding="utf-8"))[0]
        self.assertEqual(sorted(manifest["files"]), ["a.txt", "b.jsonl"])
        self.assertEqual(manifest["truncation"], {"niah_single_2@1024": "none"})
        self.check_error(run("eval", self.model, "niah_single_2", "--haystack", texts / "none.txt"), "none.txt")
        self.check_error(run("eval", self.model, "niah_single_2@200"), "wanted a greater length")
        self.check_error(run("eval", self.model, "qa_1", "--data", texts), "dev-v2.0.json")

    def peak_megabytes(self, length):
        command = [PROGRAM, "eval", str(self.model), f"niah_single_1@{length}", "--limit", "1", "-q", "--threads", "1", "--json",
                   str(self.folder / "out.json")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss / 1024

    def test_memory_does_not_grow_with_the_length_of_a_prompt(self):
        # 60,000 more tokens: their ids take half a megabyte, one activation of them in fp32 15 MB, all of a forward several hundred.
        self.assertLess(self.peak_megabytes(65536), self.peak_megabytes(5536) + 15)

    def test_longbench(self):
        row = {"context": "c" * 5000, "input": "Q?", "answers": ["Date"], "all_classes": ["Date", "City"]}
        for name in ("trec", "samsum", "lcc"):
            (self.folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        rows = self.rows("longbench_trec", "longbench_samsum@1000", "longbench_lcc", "--data", self.folder)
        self.assertEqual([r["metric"] for r in rows], ["classification", "rouge_l", "code_similarity"])
        self.assertTrue(all(r["documents"] == 1 and r["truncated"] == 1 for r in rows))
        self.check_error(run("eval", self.model, "longbench_qasper", "--data", self.folder), "THUDM/LongBench")

    def test_similarity_of_code_is_difflibs(self):
        answers = ["".join(chr(32 + (7 * i + n * n) % 95) for i in range(n)) for n in (5, 40, 199, 260)]
        rows = [{"context": f"x = {n}\n" * n, "input": "", "answers": [answer]} for n, answer in enumerate(answers)]
        (self.folder / "lcc.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        out = self.folder / "out"
        self.rows("longbench_lcc", "--data", self.folder, "--out", out)
        lines = [json.loads(line) for line in next(out.glob("samples_*.jsonl")).read_text(encoding="utf-8").splitlines()[1:]]
        self.assertEqual(sorted(line["document"] for line in lines), [0, 1, 2, 3])
        for line in lines:
            text = line["texts"][0].lstrip("\n").split("\n")
            code = next((part for part in text if "`" not in part and "#" not in part and "//" not in part), "")
            answer = answers[line["document"]]
            wanted = round(100 * difflib.SequenceMatcher(None, code, answer).ratio()) / 100 if code else 0
            self.assertEqual(line["scores"], [wanted], text)


if __name__ == "__main__":
    unittest.main()
