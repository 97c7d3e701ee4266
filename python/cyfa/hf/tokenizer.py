"""A tokenizer for transformers that equals the program's "bytes"."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

BOS, EOS = "<s>", "</s>"  # tokens 256 and 257


def byte_tokenizer(**options) -> PreTrainedTokenizerFast:
    """Tokens 0 .. 255 are the bytes, 256 and 257 begin and end a text: a BPE over bytes without merges. Encoding adds neither.

    Save it beside a model whose config says "tokenizer": "bytes" (byte_tokenizer().save_pretrained(folder)). Padding is token 257.
    """
    characters = bytes_to_unicode()
    backend = Tokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    settings = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS, "padding_side": "left", "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(settings | options))
