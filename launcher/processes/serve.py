"""The life of a rank that ``launch`` starts: one call, and no longer than its caller."""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from multiprocessing.connection import Connection
from typing import NoReturn

from launcher.processes.calls import answer
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, FINISHED
from launcher.processes.group import device_of, joined, meet
from launcher.processes.signals import end_now, kill_workers
from launcher.processes.threads import threads_per_rank, usable_cores, use_threads, users_own_threads

GROUP_TIMEOUT_S = 600.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Work:
    """What a rank is to do.

    Attributes:
        call: as ``packed`` gives it.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: that the rank computes with; None: as is the rule.
    """

    call: bytes
    device: str
    threads: int | None


def serve(descriptor: int) -> NoReturn:
    """Do the work that comes through a connection, answer, and end; end at once where the caller does.

    Args:
        descriptor: of the connection.
    """
    connection = Connection(descriptor)
    _wake_when_orphaned()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)  # lines of ranks stay whole
    with suppress(EOFError, OSError):  # the caller is gone
        work: Work = pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own caller
        threading.Thread(target=end_with_the_caller, args=(connection,), daemon=True).start()
        content = answer(work.call, _group(work))
        kill_workers()
        atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter would do
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send_bytes(content)  # it is the last word: who has it need not wait for anything else
        os._exit(FINISHED)
    os._exit(FAILED)


@contextmanager
def _group(work: Work) -> Iterator[None]:
    rank = Rank.from_environment(os.environ)
    own = users_own_threads(rank, os.environ)
    use_threads(threads_per_rank(rank, work.threads, own, usable_cores()))
    device = device_of(rank, work.device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    with joined(meet(rank), rank, rank.world_size, backend, device, GROUP_TIMEOUT_S):
        yield


def end_with_the_caller(connection: Connection) -> None:
    """In a thread: end this process, and those that it started, once nobody is at the other end."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    end_now(FAILED)


def _wake_when_orphaned() -> None:
    """Let a rank that was stopped hear of the end of its caller, where the system can tell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
