"""The processes of a job on this machine, and what they find in their environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

CONSOLE = "console.log"


def new_store(host: str = "") -> dist.TCPStore:
    """A store on a port that nobody else has; for this machine alone unless ``host`` is an address of it."""
    with socket.socket() as listener:
        listener.bind((host or "127.0.0.1", 0))
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
        return dist.TCPStore(
            host or "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def start_rank(order: Path, environment: Mapping[str, str], cores: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a rank of a job; what it prints goes to ``console.log`` of the run folder.

    Args:
        order: the file with the job's settings.
        environment: of the process.
        cores: on which it may compute; empty: on all.
    """
    with (order.parent / CONSOLE).open("ab") as console:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "launcher", "--job", str(order)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # signals of a terminal are for the sweep, which passes them on
        )
    if cores:
        with suppress(ProcessLookupError):  # it is over already
            os.sched_setaffinity(process.pid, cores)
    return process


def tell(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a rank; SIGKILL also to the processes that it started."""
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.send_signal(number)


@dataclass
class Ranks:
    """Ranks that this process started, and the store that they meet at."""

    store: dist.TCPStore | None
    processes: dict[int, subprocess.Popen[bytes]]

    def statuses(self) -> dict[int, int]:
        """Exit statuses of the ranks that have ended."""
        found = {rank: process.poll() for rank, process in self.processes.items()}
        return {rank: status for rank, status in found.items() if status is not None}

    def tell(self, number: int) -> None:
        """Send a signal to the ranks that run."""
        for process in self.processes.values():
            tell(process, number)

    def close(self) -> None:
        """Leave no process, and no store."""
        self.tell(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.store = None
