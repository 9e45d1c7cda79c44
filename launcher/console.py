"""What the command says to the user, outside any log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from launcher.processes.early import nothing_began
from launcher.processes.environment import Rank
from launcher.processes.errors import PREEMPTED
from launcher.processes.failures import printable
from launcher.processes.signals import Preempted

PATIENCE_S = 20.0


def say(text: str) -> None:
    """Print a message as errors are printed; nothing happens where nobody reads any more."""
    with suppress(OSError):
        sys.stderr.write(printable(text).rstrip() + "\n")
        sys.stderr.flush()


@contextmanager
def patience(text: str) -> Iterator[None]:
    """Say what is waited for, if it takes long."""
    timer = threading.Timer(PATIENCE_S, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def said_that_nothing_began(signal: Preempted, rank: Rank) -> int:
    """Say that a signal came before the run began; returns the exit status."""
    nothing_began(str(signal), rank.rank)
    return PREEMPTED
