"""Ranks that are killed, stopped or disagree: the run ends on all of them with a message that names the rank, and torchrun's restart goes
on from the last checkpoint. scripts/kill_ranks.py repeats the kills many times."""

import os
import re
import signal
import subprocess
import time

import pytest
from ranks_test import environment, equal, keys, launch, rows, run  # noqa: F401: keys is a fixture

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


def test_restarts_go_on_by_themselves(keys, tmp_path):  # noqa: F811
    words = [*keys, "save_every=1", "steps=12", "validation=", "shard=optimizer"]
    run(launch(2, tmp_path / "whole", *words))
    run_ = Run(launch(2, tmp_path / "run", *words, restarts=2))
    for kill in ("saved step 2", "saved step 6"):
        run_.until(kill)
        os.kill(run_.rank(1 if kill.endswith("2") else 0), signal.SIGKILL)
    out = run_.end()
    assert run_.process.returncode == 0, out
    assert "done" in out
    assert equal(tmp_path / "run", tmp_path / "whole", 12)
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 13))


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
