"""Reads the evaluation sets and prepares their documents. lm-evaluation-harness imports this file by its path, from the YAML files."""

import json
import os
import pathlib
import re

import datasets
import fsspec
from fsspec.utils import infer_compression

_ENDINGS = ("", ".zst", ".gz", ".xz", ".bz2")


def load(file, data=None, reader="json_lines", labels=None, **_):
    """The documents of a file, plain or compressed, as the split "test".

    Args:
        file: names that the file may have in the folder.
        data: the folder, from --metadata data=FOLDER or the environment variable CYFA_EVAL_DATA.
        reader: a key of _READERS.
        labels: a second file, with the label of each document.

    The rest of the metadata is not for this function.
    """
    data = data or os.environ.get("CYFA_EVAL_DATA")
    if not data:
        raise ValueError(f"no folder with {' or '.join(file)}: give --metadata data=FOLDER, or set CYFA_EVAL_DATA")
    documents = _READERS[reader](_text(pathlib.Path(data), file))
    if labels is not None:
        given = _text(pathlib.Path(data), [labels]).split()
        if len(given) != len(documents):
            raise ValueError(f"{data}: {labels} has {len(given)} labels for the {len(documents)} documents of {' or '.join(file)}")
        documents = [document | {"label": int(label)} for document, label in zip(documents, given)]
    return {"test": datasets.Dataset.from_list(documents)}


def _text(folder, names):
    for path in (folder / (name + ending) for name in names for ending in _ENDINGS):
        if path.is_file():
            kind = infer_compression(str(path))
            if kind is None and path.suffix in _ENDINGS:
                raise ValueError(f"{path}: nothing here decompresses it; pip install zstandard, or decompress the file")
            with fsspec.open(str(path), "rb", compression=kind) as stream:
                return stream.read().decode()
    raise FileNotFoundError(f"{folder} has no file {' or '.join(names)}, nor one with {', '.join(_ENDINGS[1:])} after the name")


def _json_lines(text):
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _pages(text):
    """The pages of a raw WikiText file: each begins at a line "= title =" of the first level."""
    pages, lines = [], []
    for line in text.split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            pages.append("\n".join(lines))
            lines = []
        lines.append(line)
    return [{"page": page} for page in pages if page.strip()] + [{"page": "\n".join(lines)}]


_READERS = {"json_lines": _json_lines, "pages": _pages}


# WikiText: the text that is scored, and the words and bytes of the original page, over which the perplexities are taken.

_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_BEFORE = (("s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" : ", ": "), (" ; ", "; "), (" . ", ". "), (" ! ", "! "),
           (" ? ", "? "), (" , ", ", "))  # fmt: skip
_AFTER = (("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "),
          (" 's", "'s"))  # fmt: skip


def page_text(doc):
    """The page without the marks of WikiText's tokens, as the harness scores it."""
    text = doc["page"]
    for old, new in _BEFORE:
        text = text.replace(old, new)
    for opening, closing in _PAIRS:
        inside = rf"{re.escape(opening)}\s*([^{re.escape(closing)}]*?)\s*{re.escape(closing)}"
        text = re.sub(inside, lambda found: opening + found.group(1) + closing, text)
    for old, new in _AFTER:
        text = text.replace(old, new)
    return text


def page_results(doc, results):
    """The metrics of a page, each with its weight: words and bytes are those of the original page."""
    (log_likelihood,) = results
    words, size = len(re.split(r"\s+", doc["page"])), len(doc["page"].encode())
    return {"word_perplexity": (log_likelihood, words), "byte_perplexity": (log_likelihood, size), "bits_per_byte": (log_likelihood, size)}


# HellaSwag: the context and the endings without the marks of their source.


def _clean(text):
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def hellaswag(documents):
    """The documents with query, choices and gold."""

    def prepare(doc):
        context = f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}"
        return {"query": _clean(context), "choices": [_clean(ending) for ending in doc["endings"]], "gold": int(doc["label"])}

    return documents.map(prepare)


# WinoGrande: what follows the blank is scored after each filling of it.


def winogrande_fillings(doc):
    """The sentence up to the blank, with each filling."""
    before = doc["sentence"][: doc["sentence"].index("_")]
    return [before + doc["option1"], before + doc["option2"]]


def winogrande_rest(doc):
    """The sentence after the blank."""
    return doc["sentence"][doc["sentence"].index("_") + 1 :].strip()


def winogrande_gold(doc):
    """The index of the right filling."""
    return int(doc["answer"]) - 1


# Samples of questions: a text that holds one of the answers is right.


def question(doc):
    """The prompt, which a set has whole or as the question alone."""
    return doc["query"] if doc.get("query") is not None else f"Question: {doc['question']}\nAnswer:"


def answers(doc):
    """The right answers. One that is a list of parts, as DROP has them, is these parts with spaces between them."""
    given = doc["answers_text"] if doc.get("answers_text") is not None else doc["answers"]
    given = [given] if isinstance(given, str) else given
    if not given:
        raise ValueError(f"a document has no answers: {question(doc)!r}")
    return [answer if isinstance(answer, str) else " ".join(answer) for answer in given]


def contains(doc, results):
    """Whether an answer occurs in the text, ignoring case."""
    (text,) = results
    return {"contains": float(any(answer.lower() in text.lower() for answer in answers(doc)))}
