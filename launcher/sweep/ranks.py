"""The processes of a job on this machine, and what they find in their environment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.distributed as dist

CONSOLE = "console.log"
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["launcher.cli", "torch._dynamo", "torch.utils.tensorboard"]


def new_store(host: str = "") -> dist.TCPStore:
    """A store on a port that nobody else has; for this machine alone unless ``host`` is an address of it."""
    with socket.socket() as listener:
        listener.bind((host or "127.0.0.1", 0))
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
        return dist.TCPStore(
            host or "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def prepare_to_start() -> None:
    """Have a process load, meanwhile, what ranks are forked from; the first rank would wait for it."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def start_rank(order: Path, environment: Mapping[str, str], cores: tuple[int, ...] = ()) -> BaseProcess:
    """Start a rank of a job; what it prints goes to ``console.log`` of the run folder.

    It is forked from a process that has torch loaded and nothing else done, which takes a fraction of a second.

    Args:
        order: the file with the job's settings.
        environment: of the process.
        cores: on which it may compute; empty: on all.
    """
    process = CONTEXT.Process(target=live, args=(str(order), dict(environment), cores), name=f"rank of {order.parent}")
    process.start()
    return process


def live(order: str, environment: dict[str, str], cores: tuple[int, ...]) -> None:
    """The life of a rank: that of a process that was given the command."""
    os.setsid()  # signals of a terminal are for the sweep, which passes them on
    os.environ.clear()
    os.environ.update(environment)
    if cores:
        os.sched_setaffinity(0, cores)
    _print_to(Path(order).parent / CONSOLE)
    multiprocessing.set_start_method(None, force=True)  # its own children start as those of any process
    from launcher.__main__ import main  # noqa: PLC0415 - loads torch, which is not for whoever starts ranks

    sys.argv = ["launcher", "--job", order]
    main()


def _print_to(file: Path) -> None:
    with file.open("ab") as console, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(console.fileno(), 1)
        os.dup2(console.fileno(), 2)


def tell(process: BaseProcess, number: int) -> None:
    """Send a signal to a rank; SIGKILL also to the processes that it started."""
    assert process.pid is not None  # noqa: S101 - it was started
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        elif process.exitcode is None:
            os.kill(process.pid, number)


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
        for process in self.processes.values():
            process.join()
        self.store = None
