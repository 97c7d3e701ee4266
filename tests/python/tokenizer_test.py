"""cyfa.hf.CyfaTokenizer: AutoTokenizer on a folder with tokenizer.model gives the program's tokens."""

import json
import pathlib

import pytest

pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

import cyfa.hf  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ROOT / "models/cyfa-4m"
TEXTS = ["The history of the city", "  two  spaces\n\nnew lines", "é 日本 \t tab", "not special: </s> <s>x", "", " "]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SMALL)


@pytest.mark.parametrize("text", [*TEXTS, (ROOT / "data/alice/alice.txt").read_text()], ids=lambda text: repr(text[:20]))
def test_tokens_and_texts_are_sentencepieces(tokenizer, text):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(SMALL / "tokenizer.model"))
    ids = pieces.encode(text)
    assert tokenizer(text).input_ids == [pieces.bos_id(), *ids]
    assert tokenizer(text, add_special_tokens=False).input_ids == ids
    assert tokenizer.decode([pieces.bos_id(), *ids], skip_special_tokens=True) == pieces.decode(ids)


def test_special_tokens_are_seen_unless_skipped(tokenizer):
    """lm-evaluation-harness ends a generated text at the decoded EOS; if that were empty, at once."""
    assert (tokenizer.decode(tokenizer.bos_token_id), tokenizer.decode([tokenizer.eos_token_id])) == ("<s>", "</s>")
    ids = tokenizer("The city").input_ids
    assert tokenizer.decode([*ids, tokenizer.eos_token_id, *ids]) == "<s>The city</s><s>The city"
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "The city"


def test_padding_is_on_the_left(tokenizer):
    batch = tokenizer(["a long text", "a"], padding=True)
    assert batch.attention_mask[1] == [0] * (len(batch.input_ids[0]) - 2) + [1, 1]
    assert batch.input_ids[1][0] == tokenizer.eos_token_id


def test_saved_and_read_again(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((SMALL / "config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is type(tokenizer) and again(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    assert (tmp_path / "tokenizer.model").read_bytes() == (SMALL / "tokenizer.model").read_bytes()


def test_a_folder_of_bytes_and_one_with_transformers_own_files(tmp_path):
    config = json.loads(cyfa.nn.config_text("cyfa-bytes-2m"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"tokenizer": "bytes"}))
    assert AutoTokenizer.from_pretrained(tmp_path)("ab").input_ids == [97, 98]
    cyfa.hf.byte_tokenizer().save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("ab").input_ids == [97, 98]
