"""The processes of a job on this machine, and what they find in their environment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.distributed as dist

from launcher.processes.forked import CONTEXT, prepare_to_fork, print_to, tell
from launcher.processes.signals import held_back
from launcher.sweep.jobs import CONSOLE

LAST_S = 10.0
"""Seconds that a killed rank has to be gone; the system may not let go of one that waits for a disk."""
PRELOADED = ["launcher.cli", "torch._dynamo", "torch.utils.tensorboard"]


def prepare_to_start() -> None:
    """Have a process load, meanwhile, what ranks are forked from; the first rank would wait for it."""
    prepare_to_fork(PRELOADED)


def start_rank(order: Path, environment: Mapping[str, str], cores: tuple[int, ...] = ()) -> BaseProcess:
    """Start a rank of a job; what it prints goes to ``console.log`` of the run folder.

    It is forked from a process that has torch loaded and nothing else done, which takes a fraction of a second.

    Args:
        order: the file with the job's settings.
        environment: of the process.
        cores: on which it may compute; empty: on all.
    """
    process = CONTEXT.Process(target=live, args=(str(order), dict(environment), cores), name=f"rank of {order.parent}")
    with held_back():  # it may be that the process that ranks are forked from starts only now
        process.start()
    return process


def live(order: str, environment: dict[str, str], cores: tuple[int, ...]) -> None:
    """The life of a rank: that of a process that was given the command."""
    os.setsid()  # signals of a terminal are for the sweep, which passes them on
    os.environ.clear()
    os.environ.update(environment)
    if cores:
        os.sched_setaffinity(0, cores)
    print_to(Path(order).parent / CONSOLE)
    multiprocessing.set_start_method(None, force=True)  # its own children start as those of any process
    from launcher.__main__ import main  # noqa: PLC0415 - loads torch, which is not for whoever starts ranks

    sys.argv = ["launcher", "--job", order]
    main()


@dataclass
class Ranks:
    """Ranks that this process started, and the store that they meet at."""

    store: dist.TCPStore | None
    processes: dict[int, BaseProcess]

    def statuses(self) -> dict[int, int]:
        """Exit statuses of the ranks that have ended."""
        found = {rank: process.exitcode for rank, process in self.processes.items()}
        return {rank: status for rank, status in found.items() if status is not None}

    def tell(self, number: int) -> None:
        """Send a signal to the ranks that run."""
        for process in self.processes.values():
            tell(process, number)

    def close(self) -> None:
        """Leave no process, and no store."""
        self.tell(signal.SIGKILL)
        self.wait(LAST_S)
        self.store = None

    def wait(self, seconds: float) -> None:
        """Wait until each is gone, but for each no longer than ``seconds``."""
        for process in self.processes.values():
            process.join(seconds)
