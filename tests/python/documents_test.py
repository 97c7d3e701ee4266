"""The Python examples of the documents run as they are printed: the blocks of a document one after another, as in one session."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(document):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/fla.md"])
def test_examples_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    found = blocks(document)
    assert found
    session = {}
    for block in found:
        exec(compile(block, document, "exec"), session)
