"""Signals that come before torch is loaded: they end the process with a word, since nothing would be lost."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

from launcher.processes.environment import Rank
from launcher.processes.errors import PREEMPTED, SettingsError

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def end_on_signals() -> None:
    """From here on, in the main thread, until others listen to signals, one ends the process.

    A signal that whoever started the process lets it ignore stays ignored; one that was held back until now comes.
    """
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def nothing_began(name: str, rank: int) -> None:
    """On rank 0: tell the user that the signal called ``name`` ended a run that had not begun.

    Launchers end all ranks when one of them ends, so that rank 0 hears of what another was asked.
    """
    if rank == 0:
        with suppress(OSError):  # nobody reads any more
            os.write(2, f"preempted by {name} before the run began\n".encode())


def _end(number: int, _frame: FrameType | None) -> None:
    nothing_began(signal.Signals(number).name, _rank())
    os._exit(PREEMPTED)


def _rank() -> int:
    try:
        return Rank.from_environment(os.environ).rank
    except SettingsError:
        return 0
