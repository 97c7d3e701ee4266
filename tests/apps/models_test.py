#!/usr/bin/env python3
"""Tests `cyfa models`, `init` and `verify model` from outside. Usage: models_test.py PROGRAM [unittest arguments]"""

import json
import shutil
import unittest

from harness import BASELINES, MODELS, ROOT, SHARED_BASELINES, SHARED_MODELS, CliTest, needs_shared, run, Vectors


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
        self.assertGreaterEqual(len(BASELINES), 16)
        self.check(run("verify", "model", *BASELINES), 0)

    @needs_shared(SHARED_BASELINES, "12 larger checkpoints of the origins")
    def test_verify_shared_baselines(self):
        loose = [folder for folder in SHARED_BASELINES if folder.name in ("kda", "delta_net")]  # kernels with errors near 1e-3
        self.check(run("verify", "model", *(folder for folder in SHARED_BASELINES if folder not in loose)), 0)
        self.check(run("verify", "model", *loose, "--limit", "2e-3"), 0)

    def test_verify(self):
        self.check_models(MODELS)

    @needs_shared(SHARED_MODELS, "1 model of the authors")
    def test_verify_shared(self):
        self.check_models(SHARED_MODELS)

    def check_models(self, folders):
        for folder in folders:
            result = run("verify", "model", folder, "--json")
            self.check(result, 0)
            (row,) = json.loads(result.stdout)
            self.assertTrue(row["pass"])
            self.assertGreater(len(row["tensors"]), 50)

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


if __name__ == "__main__":
    unittest.main()
