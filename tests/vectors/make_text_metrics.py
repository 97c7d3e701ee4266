#!/usr/bin/env python3
"""Writes text_metrics.json: predictions and answers with their scores by LongBench's definitions.

    make_text_metrics.py > text_metrics.json

Needs the Python packages rouge 1.0.1 and fuzzywuzzy 0.18.0, without python-Levenshtein, and Python 3.11: a newer one has newer tables of
Unicode. The functions below restate LongBench's metrics.py (THUDM/LongBench at commit 2e00731) around these packages.
"""

import collections
import json
import random
import re
import string
import sys
import warnings

warnings.filterwarnings("ignore", message="Using slow")
from fuzzywuzzy import fuzz  # noqa: E402
from rouge import Rouge  # noqa: E402

WORDS = """the a an The A cat cats dog sat mat U.S. it's "quoted" naïve ÉCOLE école “curly” — \u00a0nbsp ½ ДОМ дом 日本 the, An. a-b""".split(" ")
CODE = ["int ", "x", " = ", "foo(", ")", ";", "\t", "return ", "    ", "self.", "value", "_", "é", "for i in range(", "10", ":"]
CODE = 3 * CODE + ["\n", "`", "#", "//"]


def f1(prediction, answer):
    def words(text):
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    said, wanted = words(prediction), words(answer)
    common = sum((collections.Counter(said) & collections.Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return (2 * precision * recall) / (precision + recall)


def rouge_l(prediction, answer):
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except Exception:  # LongBench scores whatever the package refuses as 0
        return 0.0


def code_similarity(prediction, answer):
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if "`" not in line and "#" not in line and "//" not in line), "")
    return fuzz.ratio(line, answer) / 100


def classification(prediction, answer, classes):
    named = [name for name in classes if name in prediction]
    for name in named:
        if name in answer and name != answer:
            named.remove(name)
    return 1.0 / len(named) if answer in named else 0.0


def text(draw, most):
    """Words with single spaces, some of other white space, and dots."""
    out = ""
    for _ in range(draw.randint(0, most)):
        out += draw.choice(WORDS) + draw.choice([" ", " ", " ", ". ", ".", "  ", "\n", "\t", ", ", "\u2003"])
    return out


def cases():
    draw = random.Random(1)
    texts = [("", ""), ("", "a"), ("the", "the"), (".", "a"), (" ", "a. "), (" . x", "x. ."), ("a b", ""), ("cat.", "Cat")]
    texts += [(text(draw, 14), text(draw, 14)) for _ in range(60)]
    texts += [(text(draw, 80), text(draw, 60)) for _ in range(6)]
    for prediction, answer in texts:
        yield {"prediction": prediction, "answer": answer, "f1": f1(prediction, answer), "rouge_l": rouge_l(prediction, answer)}
    code = [("", "x"), ("\n\n", "x"), ("x", "x"), ("# a\nx = 1\n", "x = 1"), ("`a`\n// b\n", "b"), ("\n\nab\n", "ab"), ("ab", "ba")]
    make = lambda most: "".join(draw.choice(CODE) for _ in range(draw.randint(0, most)))  # noqa: E731
    code += [(make(16), make(12).replace("\n", "")) for _ in range(50)]
    # Answers of 200 and more characters: frequent characters cannot start a block.
    code += [("".join(draw.choice("abcdefgh =()") for _ in range(300)), "".join(draw.choice("abcdefgh =()") for _ in range(n)))
             for n in (199, 200, 260, 400)]
    code += [(long + "tail", "head" + long) for long in (" ".join(str(n) for n in range(90)), "x" * 250)]
    for prediction, answer in code:
        yield {"prediction": prediction, "answer": answer, "code": code_similarity(prediction, answer)}
    classes = ["Location", "Other location", "City", "Country", "Individual", "Number of something", "something", "Number"]
    for _ in range(40):
        prediction = ", ".join(draw.sample(classes, draw.randint(0, 5)))
        answer = draw.choice(classes)
        yield {"prediction": prediction, "answer": answer, "classes": classes, "classification": classification(prediction, answer, classes)}


print("[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases()) + "\n]")
if sys.version_info[:2] != (3, 11):
    sys.exit("made with another Python than 3.11: see above")
