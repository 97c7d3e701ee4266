#!/usr/bin/env python3
"""Evaluates a checkpoint with lm-evaluation-harness, on two tasks of one's own.

A task is a YAML file; examples/tasks has two, made from the book that comes with the project, so that nothing is downloaded. The harness's
own tasks run in the same way, by their names.

    python examples/evaluate.py
    python examples/evaluate.py FOLDER --tasks alice_continuation --limit 100 --device cuda
"""

import argparse
import pathlib

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import cyfa.hf  # noqa: F401: makes the model types known to transformers, and so to the harness

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", default=ROOT / "models/cyfa-4m")
    parser.add_argument("--tasks", nargs="+", default=["alice_continuation", "alice_perplexity"])
    parser.add_argument("--limit", type=int, default=20, help="questions of each task")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    found = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(options.folder), "dtype": "float32", "add_bos_token": True},
        tasks=options.tasks,
        task_manager=TaskManager(include_path=str(ROOT / "examples/tasks"), include_defaults=False),
        limit=options.limit,
        batch_size=8,
        device=options.device,
        bootstrap_iters=1000,
    )
    for task, scores in found["results"].items():
        for name, score in scores.items():
            metric = name.removesuffix(",none")
            if isinstance(score, float) and "stderr" not in metric:
                error = scores.get(f"{metric}_stderr,none")
                error = f" +- {error:.3f}" if isinstance(error, float) else ""
                print(f"{task:20} {metric:16} {score:.3f}{error}")


if __name__ == "__main__":
    main()
