"""Tasks of lm-evaluation-harness over evaluation sets in local files; docs/python.md, "Evaluation", says how to run them.

    lm_eval --include_path "$(python -m cyfa.lm_eval)" --tasks cyfa_arc_easy --metadata data=FOLDER ...

The definitions are those of the harness's own tasks, as `cyfa eval` has them. Only the source of the documents differs. The three samples
of questions (tag cyfa_samples) are tasks of `cyfa eval` alone.
"""

import pathlib


def folder() -> pathlib.Path:
    """The folder of the task files, for --include_path."""
    return pathlib.Path(__file__).resolve().parent
