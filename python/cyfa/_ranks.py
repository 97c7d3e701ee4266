"""The ranks of `torchrun ... -m cyfa train`: this process makes their group with torch.distributed, and the program, in C++, finds it by
its name. When a collective fails, the ranks tell each other through torchrun's store who still answers, so that the error names the rank
that does not.

torchrun's store outlives a restart of the workers. Each restart therefore has its own prefix in it; otherwise new workers would read the
addresses of dead ones.
"""

import ctypes
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

START_SECONDS = 600  # how long ranks wait for each other to start
ANSWER_SECONDS = 3  # how long a rank has to answer before it counts as gone
LOST = "lost"  # set by the first rank that notices a failure

JOIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_double, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_int)
REPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_int)


def started():
    """Whether torchrun, or a launcher that sets the same variables, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


class Ranks:
    """All ranks of this run. `program` is the loaded library."""

    def __init__(self, program):
        self.program = program
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self.faults = None
        # The library keeps these for as long as it runs.
        self.callbacks = (JOIN(self.answering(self.join)), REPORT(self.answering(self.report)))
        program.cyfa_launch(self.rank, self.size, self.local_rank, self.restarts, *self.callbacks)

    @staticmethod
    def answering(function):
        """The callback that writes what function returns, or its error, to the caller's text."""

        def callback(*arguments):
            *values, text, size = arguments
            try:
                answer, failed = function(*values), 0
            except Exception as error:  # the caller throws it
                answer, failed = f"{type(error).__name__}: {error}".splitlines()[0], 1
            data = os.fsencode(answer)[: size - 1] + b"\0"
            ctypes.memmove(text, data, len(data))
            return failed

        return callback

    def store(self, timeout, serves=False):
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=serves, timeout=timeout, wait_for_workers=False)
        return dist.PrefixStore(f"cyfa/restart-{self.restarts}", store)

    def join(self, device, timeout, context):
        """Makes the group of all ranks, and groups of `context` successive ranks. Returns the names of this rank's two groups."""
        backend = "gloo"
        if device == b"cuda":
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
            if self.local_size <= torch.cuda.device_count():  # NCCL takes one rank per GPU
                backend = "cpu:gloo,cuda:nccl"
        timeout = datetime.timedelta(seconds=timeout)
        start = max(timeout, datetime.timedelta(seconds=START_SECONDS))
        serves = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = self.store(start, serves)
        store.set(f"here-{self.rank}", "")
        store.wait([f"here-{rank}" for rank in range(self.size)], start)
        dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=self.rank, world_size=self.size, timeout=timeout)
        self.faults = dist.PrefixStore("faults", self.store(datetime.timedelta(seconds=ANSWER_SECONDS)))
        threading.Thread(target=self.watch, daemon=True).start()
        parts = [list(range(first, first + context)) for first in range(0, self.size, context)]
        groups = [dist.new_group(part, timeout=timeout) for part in parts]  # every rank makes all of them
        return f"{dist.group.WORLD.group_name} {groups[self.rank // context].group_name}"

    def watch(self):
        """Waits until a rank notices a failure, and then answers for this one."""
        store = dist.PrefixStore("faults", self.store(datetime.timedelta(days=365)))
        try:
            store.wait([LOST], datetime.timedelta(days=365))
            store.set(f"answer-{self.rank}", "waits" if self.program.cyfa_waits() else "computes")
        except Exception:  # the store has ended with the run
            return

    def report(self, error, own):
        """Tells the others of a failure. Returns what they say about its cause."""
        if self.faults is None:
            return ""
        if own:
            self.faults.set(f"error-{self.rank}", os.fsdecode(error))
        else:
            self.faults.set(f"answer-{self.rank}", "waits")
        self.faults.set(LOST, str(self.rank))
        return "" if own else self.cause()

    def cause(self):
        others = [rank for rank in range(self.size) if rank != self.rank]
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end and not all(self.faults.check([f"answer-{rank}"]) for rank in others):
            time.sleep(0.05)
        for rank in others:
            if self.faults.check([f"error-{rank}"]):
                return f"rank {rank} has failed: {self.faults.get(f'error-{rank}').decode(errors='replace')}"
        silent = [rank for rank in others if not self.faults.check([f"answer-{rank}"])]
        if silent:
            return f"{named(silent)} not answer: ended, killed or stopped"
        busy = [rank for rank in others if self.faults.get(f"answer-{rank}") == b"computes"]
        if busy:
            return f"{named(busy)} not take part in the exchange: still busy with something else"
        return "all ranks answer: the network between them fails, or is too slow"

    def leave(self, status):
        """Ends this process. Python's own end could wait for threads of a group that is broken."""
        sys.stdout.flush()
        sys.stderr.flush()
        if status == 0 and dist.is_initialized():
            dist.destroy_process_group()
        os._exit(status)


def named(ranks):
    return f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} do"
