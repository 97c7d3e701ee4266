"""The data of the tasks in this folder, made from the book that comes with the project."""

import pathlib
import random
import re

import datasets

BOOK = pathlib.Path(__file__).resolve().parents[2] / "data/alice/alice.txt"


def paragraphs():
    """The book's long paragraphs, a line each."""
    found = (" ".join(text.split()) for text in re.split(r"\n\s*\n", BOOK.read_text()))
    return [text for text in found if len(text.split()) >= 40]


def continuations(**_):
    """Rows {"start", "endings", "right"}: the first half of a paragraph, four second halves, and which of them is its own."""
    halves = []
    for text in paragraphs():
        words = text.split()
        halves.append((" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :][:20])))
    draw = random.Random(1)
    rows = []
    for start, ending in halves:
        others = draw.sample([other for _, other in halves if other != ending], 3)
        endings = draw.sample([ending, *others], 4)
        rows.append({"start": start, "endings": endings, "right": endings.index(ending)})
    return {"test": datasets.Dataset.from_list(rows)}


def pages(**_):
    """Rows {"page"}: 1,500 characters of the book each."""
    text = BOOK.read_text()
    rows = [{"page": text[i : i + 1500]} for i in range(0, len(text) - 1500, 1500)]
    return {"test": datasets.Dataset.from_list(rows)}
