#!/usr/bin/env python3
"""Runs transformers' own common tests of models, generation and configs on the classes of cyfa.hf.

Usage: transformers_tests.py CHECKOUT [TYPE ...] [-- PYTEST OPTIONS]

CHECKOUT is a source tree of transformers, of a version near the installed one; only its folder tests/ is used, which is in no wheel.
TYPE is a folder of tests/vectors, such as cyclic_flow (the default), or "all". Each type is run by itself; a line of counts follows.
Beside pytest the tests import httpx and parameterized.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
VECTORS = ROOT / "tests/vectors"
TYPE = os.environ.get("CYFA_TYPE")  # set in the process that pytest runs in


def main() -> int:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if words else 2
    options = words[words.index("--") + 1 :] if "--" in words else []
    checkout, *types = words[: words.index("--")] if "--" in words else words
    checkout = pathlib.Path(checkout).resolve()
    if not (checkout / "tests/test_modeling_common.py").is_file():
        print(f"{checkout} has no tests/test_modeling_common.py; wanted a source tree of transformers", file=sys.stderr)
        return 2
    if types == ["all"]:
        types = sorted(path.parent.name for path in VECTORS.glob("*/expected.safetensors"))
    failed = 0
    for name in types or ["cyclic_flow"]:
        environment = os.environ | {"CYFA_TYPE": name, "CYFA_TRANSFORMERS": str(checkout)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *options, __file__]
        result = subprocess.run(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True)
        failed += result.returncode != 0
        lines = result.stdout.splitlines()
        print("\n".join(lines if result.returncode or options else []))
        print(f"{name}: {lines[-1] if lines else f'exit status {result.returncode}'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

if not TYPE:
    raise ImportError("transformers_tests.py is a program; its tests run in the pytest that it starts")
sys.path.insert(0, os.environ["CYFA_TRANSFORMERS"])

import copy  # noqa: E402
import unittest  # noqa: E402

import torch  # noqa: E402
from cyfa.hf import CyfaCache, CyfaConfig, CyfaForCausalLM  # noqa: E402
from tests.generation.test_utils import GenerationTesterMixin  # noqa: E402
from tests.test_configuration_common import ConfigTester  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin, ids_tensor  # noqa: E402


class _ModelTester:
    batch_size, seq_length = 13, 7
    is_training = True

    def __init__(self, parent):
        self.parent = parent
        config = self.get_config()
        self.hidden_size, self.num_hidden_layers, self.vocab_size = config.hidden_size, config.num_hidden_layers, config.vocab_size

    def get_config(self):
        config = CyfaConfig.from_pretrained(VECTORS / TYPE)
        config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 3
        return config

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 4) + 4
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class ModelTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (CyfaForCausalLM,)
    has_attentions = False
    test_resize_embeddings = False  # a built model refuses it

    def setUp(self):
        self.model_tester = _ModelTester(self)

    # What the originals ask of transformers' own tables and cache classes.

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = copy.deepcopy(inputs_dict)
        if return_labels:
            inputs["labels"] = torch.zeros_like(inputs["input_ids"])
        return inputs

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        self.assertIsInstance(past_key_values, CyfaCache)
        self.assertEqual(len(past_key_values), config.num_hidden_layers)
        self.assertEqual(past_key_values.get_seq_length(), seq_length)
        self.assertEqual(past_key_values.batch_size, batch_size)

    def _check_caches_are_equal(self, cache1, cache2):
        self.assertEqual(cache1.get_seq_length(), cache2.get_seq_length())
        for layer1, layer2 in zip(cache1.states, cache2.states, strict=True):
            for state1, state2 in zip(layer1, layer2, strict=True):
                torch.testing.assert_close(state1, state2)

    def test_left_padding_compatibility(self):
        """The original leaves out models without attention, which often cannot be padded."""
        self.has_attentions = True
        super().test_left_padding_compatibility()

    def test_config(self):
        tester = ConfigTester(self, config_class=CyfaConfig, common_properties=["hidden_size", "num_hidden_layers"])
        tester.run_common_tests()


def _skip(reason, *names):
    for name in names:
        setattr(ModelTest, name, unittest.skip(reason)(lambda self: None))


_skip(
    "checkpointing is an option of the block's op, no GradientCheckpointingLayer; tests/python/hf_test.py compares gradients",
    "test_gradient_checkpointing_enable_disable",
    "test_training_gradient_checkpointing",
    "test_training_gradient_checkpointing_use_reentrant_false",
    "test_training_gradient_checkpointing_use_reentrant_true",
)
_skip("the embedding is a part of the library and no torch.nn.Embedding", "test_model_get_set_embeddings")
_skip("the model without its head is no class of its own", "test_correct_missing_keys")
