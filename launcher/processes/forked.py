"""Processes forked from one that has torch loaded and nothing else done, which takes a fraction of a second."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from launcher.processes.signals import held_back

CONTEXT = multiprocessing.get_context("forkserver")
NOT_STARTED = (OSError, EOFError)
"""What is raised where a process cannot be started; EOFError where the one that it is forked from was killed."""


def prepare_to_fork(modules: Sequence[str]) -> None:
    """Have a process load ``modules``, meanwhile, that others are forked from; the first would wait for it."""
    CONTEXT.set_forkserver_preload([*modules])
    with held_back():  # signals to the group of this process are none of its business: the others would end with it
        forkserver.ensure_running()


def print_to(file: Path) -> None:
    """From here on what this process prints is added to a file, and nobody types."""
    with file.open("ab") as console, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(console.fileno(), 1)
        os.dup2(console.fileno(), 2)


def tell(process: BaseProcess, number: int) -> None:
    """Send a signal to a process that leads a group; SIGKILL also to the processes that it started."""
    assert process.pid is not None  # noqa: S101 - it was started
    if number == signal.SIGKILL:
        with suppress(ProcessLookupError):  # it has no group of its own yet, or none is left of it
            os.killpg(process.pid, number)
    if process.exitcode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
