#!/usr/bin/env python3
"""Kills ranks of a training run at random moments and checks that nothing is lost: `torchrun --max-restarts` goes on from the last whole
checkpoint by itself, and the last checkpoint has the bits of a run that nobody disturbed.

    scripts/kill_ranks.py [KILLS] [--ranks N] [--seed S]

50 kills by default, of a small model on the CPU; each costs the start of N Python processes. Exit status 0: nothing was lost.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS_PER_KILL = 20
CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "num_slots": 8,
          "vocab_size": 258, "intermediate_size": 64, "bos_token_id": 256, "eos_token_id": 257}


def ranks_of(launcher):
    """Process ids of the launcher's ranks."""
    try:
        with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except FileNotFoundError:
        return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", nargs="?", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(" ".join(f"{i * i % 97} sheep and {i % 13} wolves" for i in range(3000)))
        (folder / "config.json").write_text(json.dumps(CONFIG))
        steps = max(STEPS_PER_KILL * options.kills, 1)
        subprocess.run([sys.executable, "-m", "cyfa", "prepare", folder / "data", folder / "text.txt", "-q"], check=True, env=environment)
        keys = [f"model={folder / 'config.json'}", f"data={folder / 'data'}", f"steps={steps}", "batch=4", "context=24", "save_every=1",
                "shard=optimizer", "log_every=1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), "--max-restarts",
                    str(options.kills + 1), "-m", "cyfa", "train"]
        metrics = folder / "run/metrics.jsonl"
        process = subprocess.Popen([*torchrun, folder / "run", *keys], env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        killed, reached = 0, 0
        while process.poll() is None and killed < options.kills:
            lines = metrics.read_text().count("\n") if metrics.exists() else 0
            if lines <= reached:  # the ranks are on their way again when a new line appears
                time.sleep(0.02)
                continue
            time.sleep(random.uniform(0, 0.3))
            ranks = ranks_of(process.pid)
            if not ranks:
                continue
            os.kill(random.choice(ranks), signal.SIGKILL)
            killed += 1
            print(f"kill {killed}: after step {lines}", flush=True)
            time.sleep(0.5)
            reached = lines + 1
        status = process.wait()
        subprocess.run([*torchrun, folder / "whole", *keys], check=True, env=environment, stdout=subprocess.DEVNULL)
        rows = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        last = f"checkpoints/step-{steps:08}"
        files = ["model.safetensors"] + [f"optimizer-{rank + 1:05}-of-{options.ranks:05}.safetensors" for rank in range(options.ranks)]
        same = all((folder / "run" / last / one).read_bytes() == (folder / "whole" / last / one).read_bytes() for one in files)
        print(f"{killed} kills, exit status {status}, {len(rows)} rows of metrics, bits of an undisturbed run: {same}")
        if status != 0 or not same or rows != list(range(1, steps + 1)) or killed < options.kills / 2:  # fewer: the run was too fast
            sys.exit(1)


if __name__ == "__main__":
    main()
