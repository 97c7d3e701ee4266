"""The tokenizer of a folder that has tokenizer.model, SentencePiece's file, and none of transformers' own files. AutoTokenizer finds it."""

import json
import pathlib

import sentencepiece
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from cyfa.hf.tokenizer import byte_tokenizer


class CyfaTokenizer(SentencePieceBackend):
    """Encodes and decodes with SentencePiece itself, as the program `cyfa` does: the same text gives the same tokens, whatever the model
    file says of spaces, normalization and unknown characters. (transformers' conversion of such a file keeps not all of these.)

    A text begins with the file's BOS where it has one. Names of special tokens in a text are text. Padding is EOS, on the left.
    """

    def __init__(self, vocab_file, **options):
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocab_file))
        named = {"bos_token": pieces.bos_id(), "eos_token": pieces.eos_id(), "unk_token": pieces.unk_id()}
        defaults = {name: pieces.id_to_piece(id) for name, id in named.items() if id >= 0}
        defaults |= {
            "pad_token": defaults.get("eos_token"),
            "padding_side": "left",
            "special_tokens_pattern": "bos" if "bos_token" in defaults else "none",
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
        super().__init__(vocab_file=str(vocab_file), **(defaults | options))

    def convert_tokens_to_string(self, tokens):
        """The text of pieces, those that stand for bytes included. BOS and EOS are written as their names, which SentencePiece leaves out:
        programs look for them in what a model writes."""
        text, pieces = "", []
        for token in tokens:
            if token in (self.bos_token, self.eos_token):
                text, pieces = text + self.sp_model.decode(pieces) + token, []
            else:
                pieces.append(token)
        return text + self.sp_model.decode(pieces)

    @classmethod
    def from_pretrained(cls, folder, *inputs, **kwargs):
        """Reads a folder. One with tokenizer.json, a tokenizer of transformers, is read as such; a model that reads bytes has no file."""
        path = pathlib.Path(folder)
        if (path / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(folder, *inputs, **kwargs)
        if not (path / "tokenizer.model").is_file() and _config_names_bytes(path / "config.json"):
            return byte_tokenizer()
        return super().from_pretrained(folder, *inputs, **kwargs)


def _config_names_bytes(path: pathlib.Path) -> bool:
    return path.is_file() and json.loads(path.read_text()).get("tokenizer") == "bytes"
