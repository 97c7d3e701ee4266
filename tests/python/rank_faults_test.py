"""Ranks that are killed, stopped or disagree: the run ends on all of them with a message that names the rank, and torchrun's restart goes
on from the last checkpoint. The scripts do the same at full size: kill_ranks.py 50 times, long_step.py with a million tokens."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from ranks_test import environment, keys, launch, run  # noqa: F401: keys is a fixture

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
LONG = ["steps=100000", "validation=", "save_every=1"]
TIMEOUT = 12  # seconds
SLACK = 15  # for a machine that is busy with other tests


class Run:
    """A run of torchrun in the background, whose ranks are found by their environment."""

    def __init__(self, command):
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=environment())

    def until(self, words):
        """Reads until a line has the words."""
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if words in line:
                return
        raise AssertionError("".join(seen))

    def rank(self, number):
        """The process id of a rank, a child of torchrun."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/environ", "rb") as variables:
                    if f"RANK={number}".encode() in variables.read().split(b"\0"):
                        return int(child)
        raise AssertionError(f"no rank {number}")

    def end(self):
        out, _ = self.process.communicate(timeout=120)
        return out


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_rank_that_does_not_answer_is_named(keys, tmp_path, how):  # noqa: F811
    run_ = Run(launch(2, tmp_path / "run", *keys, *LONG, f"timeout_minutes={TIMEOUT / 60}"))
    run_.until("saved step 2")
    pid = run_.rank(1)
    os.kill(pid, how)
    began = time.monotonic()
    if how == signal.SIGSTOP:
        run_.until("rank 1 does not answer")
        assert time.monotonic() - began < TIMEOUT + 3 + SLACK  # 3 seconds to answer
        os.kill(pid, signal.SIGKILL)  # torchrun would do so after 30 seconds
        out = run_.end()
    else:
        out = run_.end()
        # Rank 0 and torchrun both see it. If torchrun is first, it ends rank 0 and names rank 1 itself.
        if not re.search(r"rank\s+: 1 \(local_rank: 1\)\s+exitcode\s+: -9", out):
            assert "rank 1 does not answer" in out, out
            assert re.search(r"the last checkpoint is \S*step-\d{8}", out), out
    assert run_.process.returncode != 0
    # Whole: it can be resumed.
    assert "done" in run(launch(2, tmp_path / "run", "--resume", f"steps={last_step(tmp_path / 'run') + 1}"))


def last_step(folder):
    return max(int(path.name[5:]) for path in (folder / "checkpoints").iterdir() if ".part-" not in path.name)


def test_nothing_is_lost_when_ranks_are_killed_at_random():
    out = run([sys.executable, SCRIPTS / "kill_ranks.py", 2, "--seed", time.time_ns() % 1000])
    assert re.search("[12] kills, exit status 0", out) and "bits of an undisturbed run: True" in out, out


def test_a_cut_sequence_trains_as_on_one_process():
    out = run([sys.executable, SCRIPTS / "long_step.py", 1000, "--ranks", 3])
    assert "1,000 tokens on 3 ranks" in out, out


def test_ranks_that_disagree_or_fail_are_named(keys, tmp_path):  # noqa: F811
    # Rank 1 alone has another seed, by a wrapper that changes its words.
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text("import os, sys\n"
                       "sys.argv += ['seed=7'] if os.environ['RANK'] == '1' else []\n"
                       "from cyfa.__main__ import main\n"
                       "main()\n")
    command = launch(2, tmp_path / "run", *keys)
    at = command.index("-m", command.index("--max-restarts"))
    out = run([*command[:at], wrapper, *command[at + 2:]], 1)
    assert "the hash of the recipe of rank 1 is" in out, out
    assert not (tmp_path / "run").exists()
