#!/usr/bin/env python3
"""Tests `cyfa probe` from outside, its page in a browser. Usage: probe_test.py PROGRAM [unittest arguments]"""

import html
import json
import math
import re
import shutil
import subprocess
import unittest

from harness import ROOT, CliTest, run

TEXT = ROOT / "data/alice/alice.txt"
SMALL = ["--tokens", "64", "--sequences", "4", "--held-out", "2", "-q"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

HAND = """<script>{
const box = document.getElementById("text"), head = document.getElementById("head"), slider = document.getElementById("token");
box.style.height = "40px";
box.style.width = "120px";
const seen = () => {
  const frame = box.getBoundingClientRect(), token = box.querySelector(".now").getBoundingClientRect();
  return `${document.body.dataset.head} ${document.body.dataset.token} ${token.bottom > frame.top && token.top < frame.bottom}`;
};
head.value = 3;
head.dispatchEvent(new Event("change"));
slider.value = 39;
slider.dispatchEvent(new Event("input"));
const end = seen();
box.children[2].click();
document.body.dataset.seen = `${end}, ${seen()}`;
}</script>"""


class Probe(CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.check(run("init", "cyfa-bytes-2m", self.model), 0)

    def rows(self, *arguments, sizes=SMALL):
        result = run("probe", self.model, TEXT, *sizes, *arguments, "--json")
        self.check(result, 0)
        self.assertEqual(result.stderr, "")
        tables = {}
        for row in json.loads(result.stdout):
            tables.setdefault(row["table"], []).append(row)
        return tables

    def test_the_model_that_comes_with_the_project_uses_its_clock(self):
        sizes = ["--tokens", "512", "--sequences", "4", "--held-out", "2"]
        result = run("probe", ROOT / "models/cyfa-4m", TEXT, *sizes, "-q", "--json")
        self.check(result, 0)
        rows = json.loads(result.stdout)
        (dependent,) = (row["heads"] for row in rows if row["table"] == "classes" and row["class"] == "input dependent")
        self.assertGreaterEqual(dependent, 12)  # of 18
        original, *others = (row for row in rows if row["table"] == "interventions")
        self.assertLess(original["loss"], 5)  # chance: ln 4096 = 8.3
        for row in others:
            self.assertGreater(row["change"], 0.01, row)
        gradients = [row for row in rows if row["table"] == "gradients"]
        for row in gradients:
            self.assertGreater(row["rest_without"], row["rest"])
        self.assertGreater(gradients[-1]["rest_without"], 1.3 * gradients[-1]["rest"])
        for row in rows:
            if row["table"] == "clock_paths" and row["at"] == "projection":  # three large paths that cancel
                self.assertLess(row["left"], 0.4)

    def test_tables(self):
        tables = self.rows()
        self.assertEqual((tables["probe"][0]["sequences"], tables["probe"][0]["tokens"], tables["probe"][0]["held_out"]), (4, 64, 2))
        heads = [(layer, head) for layer in range(4) for head in range(3)]
        for name in ("increments", "variance", "ages", "slots"):
            self.assertEqual([(row["layer"], row["head"]) for row in tables[name]], heads)
        self.assertEqual(sum(row["heads"] for row in tables["classes"]), 12)
        for row in tables["increments"]:
            self.assertTrue(0 < row["p05"] <= row["mean"] <= row["p95"] < 1, row)
            dependent = row["p95"] - row["p05"] >= 0.1
            self.assertEqual(row["class"], "input dependent" if dependent else "other")
        for row in tables["variance"]:
            if row["layer"] == 0:  # its clock sees only the token
                self.assertGreater(row["identity"], 0.999999)
        original, *others = tables["interventions"]
        self.assertEqual([row["setting"] for row in tables["interventions"]], ["original", "mean", "shifted", "one"])
        for row in others:
            self.assertAlmostEqual(row["change"], row["loss"] - original["loss"], places=9)
            self.assertEqual(row["worse"], sum(a > b for a, b in zip(row["losses"], original["losses"])))
        for row in tables["ages"]:
            self.assertAlmostEqual(sum(row["by_distance"]), 1, places=6)
        for row in tables["slots"]:
            self.assertEqual((len(row["used"]), len(row["energy"])), (8, 63))

    def test_gradients(self):
        tables = self.rows("--only", "gradients", sizes=["--tokens", "64", "--sequences", "1", "--held-out", "0", "-q"])
        self.assertEqual([(row["sequences"], row["tokens"]) for row in tables["gradients"]], [(1, 8), (1, 16), (1, 32), (1, 64)])
        for row in tables["gradients"]:
            for side in ("", "_without"):
                whole, clock, rest = (row[name + side] for name in ("all", "clock", "rest"))
                self.assertAlmostEqual(whole, math.hypot(clock, rest), places=9)
                self.assertAlmostEqual(row["share" + side], (clock / whole) ** 2, places=9)
            self.assertNotEqual(row["rest"], row["rest_without"])
            self.assertEqual((row["rests"], row["rests_without"]), ([row["rest"]], [row["rest_without"]]))
        whole = tables["gradients"][-1]
        groups = {row["group"]: row for row in tables["gradient_groups"]}
        for side, name in (("", "norm"), ("_without", "norm_without")):
            self.assertAlmostEqual(math.hypot(*(row[name] for row in groups.values())), whole["all" + side], places=9)
            self.assertAlmostEqual(groups["clock"][name], whole["clock" + side], places=9)
        self.assertLessEqual({"embeddings", "norms", "mlp", "q_proj", "v_proj", "o_proj", "readout"}, set(groups))
        (model,) = json.loads(run("models", ROOT / "configs/cyfa-bytes-2m.json", "--json").stdout)
        self.assertEqual(sum(row["parameters"] for row in groups.values()), model["parameters"])
        self.assertEqual([row["layer"] for row in tables["gradient_layers"]], [0, 1, 2, 3])
        clocks = tables["clock_gradients"]
        self.assertEqual([row["layer"] for row in clocks], [0, 1, 2, 3])
        self.assertAlmostEqual(math.hypot(*(row["projection"] for row in clocks)), whole["clock"], places=6)
        for row in clocks:
            self.assertAlmostEqual(row["gain"], row["increment"] / row["clock"], places=9)
            self.assertLess(row["mismatch"], 1e-3)  # a reverse sum in fp32, differenced
            self.assertTrue(0 < row["alignment"] <= math.sqrt(63))
            at_clock, at_projection = (path for path in tables["clock_paths"] if path["layer"] == row["layer"])
            self.assertEqual((at_clock["at"], at_projection["at"]), ("clock", "projection"))
            for path, of_all in ((at_clock, row["clock"]), (at_projection, row["projection"])):
                self.assertAlmostEqual(path["left"] * sum(path[name] for name in ("key", "value", "readout")) / of_all, 1, places=3)
                for name in ("key_value", "key_readout", "value_readout"):
                    self.assertTrue(-1 <= path[name] <= 1)

    def test_gradients_of_a_model_without_a_clock(self):
        self.model = self.folder / "kda"
        self.check(run("init", ROOT / "configs/parity/kda.json", self.model), 0)
        tables = self.rows("--only", "gradients", "--gradient-sequences", "2", "-o", self.folder / "out")
        self.assertEqual(set(tables), {"probe", "gradients", "gradient_groups", "gradient_layers"})
        for row in tables["gradients"]:
            self.assertEqual((row["clock"], row["sequences"], len(row["rests"])), (0, 2, 2))
            self.assertAlmostEqual(row["rest"], sum(row["rests"]) / 2, places=9)
            self.assertGreater(row["all"], 0)
            self.assertIsNone(row["all_without"])
        self.assertEqual([path.name for path in (self.folder / "out").iterdir()], ["gradients.png"])
        result = run("probe", self.model, TEXT, *SMALL, "--only", "gradients")
        self.check(result, 0)
        self.assertIn("0 heads with a clock", result.stdout)
        self.assertNotIn("stop-gradient", result.stdout)

    def test_a_constant_clock_depends_on_nothing(self):
        config = json.loads((ROOT / "configs/cyfa-bytes-2m.json").read_text()) | {"clock": "fixed", "rho": 4}
        (self.folder / "fixed.json").write_text(json.dumps(config))
        self.model = self.folder / "fixed"
        self.check(run("init", self.folder / "fixed.json", self.model), 0)
        tables = self.rows("--only", "variance", "interventions")
        for row in tables["increments"]:
            self.assertAlmostEqual(row["mean"], 0.25, places=6)
            self.assertEqual(row["class"], "other")
        self.assertNotIn("ages", tables)
        self.assertNotIn("cases", tables)
        for row in tables["interventions"][:3]:
            self.assertAlmostEqual(row["change"], 0, places=6)

    def test_text_and_pictures(self):
        out = self.folder / "new/out"
        result = run("probe", self.model, TEXT, *SMALL[:-1], "--page-tokens", "40", "-o", out)
        self.check(result, 0)
        for words in ("1. Clock increments", "2. What decides", "3. Interventions", "4. What reads find", "5. Norms of the gradients",
                      "three paths", "shifted by 31 tokens"):
            self.assertIn(words, result.stdout)
        self.assertIn("cyfa: increments", result.stderr)
        names = sorted(path.name for path in out.iterdir())
        self.assertEqual(names, ["ages.png", "gradients.png", "increments.png", "interventions.png", "page.html", "variance.png"])
        page = (out / "page.html").read_text()
        for word in ("http://", "https://", "src=", "@@"):
            self.assertNotIn(word, page)

    def test_tokens_of_a_folder(self):
        data = self.folder / "data"
        self.check(run("prepare", data, TEXT, "--no-begin", "-q"), 0)
        arguments = [*SMALL, "--only", "variance", "--json"]
        of_folder, of_file = run("probe", self.model, data, *arguments), run("probe", self.model, TEXT, *arguments)
        self.check(of_folder, 0)
        self.assertEqual(json.loads(of_folder.stdout)[1:], json.loads(of_file.stdout)[1:])

    def test_errors(self):
        other = self.folder / "other"
        config = json.loads((ROOT / "configs/parity/gla.json").read_text())
        (self.folder / "gla.json").write_text(json.dumps(config))
        self.check(run("init", self.folder / "gla.json", other), 0)
        self.check_error(run("probe", other, TEXT), "gla", "no clock", "cyclic_flow_attention")
        short = self.folder / "short.txt"
        short.write_text("too short")
        self.check_error(run("probe", self.model, short), "short.txt", "holds 9 tokens")
        self.check_error(run("probe", self.model, TEXT, "--sequences", "100000"), "alice.txt", "wanted 100000 to analyse")
        self.check_error(run("probe", self.model, self.folder / "absent"), "absent")
        self.check_error(run("probe", self.model, TEXT, "--only", "agse"), "agse", "ages")
        self.check_error(run("probe", self.model, TEXT, *SMALL, "--shift", "126"), "126", "moves nothing")
        self.check_error(run("probe", self.model, TEXT, *SMALL, "-o", short), "short.txt")

    def dom_of(self, address):
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
        offline = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command = [BROWSER, *arguments, *offline, f"--user-data-dir={self.folder / 'browser'}", address]
        return subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode()

    @unittest.skipUnless(BROWSER, "no chromium")
    def test_the_page_in_a_browser(self):
        out = self.folder / "out"
        self.check(run("probe", self.model, TEXT, *SMALL, "--page-tokens", "40", "-o", out, "--only", "page"), 0)
        dom = self.dom_of(f"{(out / 'page.html').as_uri()}#head=4&token=30")
        body = re.search(r"<body[^>]*>", dom)[0]
        self.assertIn('data-ready="yes"', body)
        self.assertIn('data-head="L1H1"', body)
        self.assertIn('data-token="30"', body)
        self.assertIn("token 31 of 40", dom)
        # The text on the page is the text.
        shown = re.search(r'<div id="text">(.*?)</div>', dom, re.DOTALL)[1]
        self.assertEqual(html.unescape(re.sub(r"<[^>]*>", "", shown)), TEXT.read_text()[:40])
        data = json.loads(re.search(r'id="data">(.*?)</script>', dom, re.DOTALL)[1])
        writers = data["heads"][4]["writers"][30]
        table = re.search(r'<table id="writers">(.*?)</table>', dom, re.DOTALL)[1]
        self.assertEqual(re.findall(r"<td>(-?\d\.\d{3})</td></tr>", table), [f"{weight:.3f}" for _, weight in writers])
        # Someone picks another head, moves the slider to the end and then clicks on a token, in a box of one short line.
        (self.folder / "hand.html").write_text((out / "page.html").read_text().replace("</body>", HAND + "</body>"))
        body = re.search(r"<body[^>]*>", self.dom_of((self.folder / "hand.html").as_uri()))[0]
        self.assertIn('data-seen="L1H0 39 true, L1H0 2 true"', body)


if __name__ == "__main__":
    if not BROWSER:
        print("SKIPPED: the page of cyfa probe in a browser: chromium is not installed", flush=True)
    unittest.main()
