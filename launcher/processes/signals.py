"""Signals that end a run."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal."""


def end_on_sigterm() -> None:
    """Turn SIGTERM into an exception of the main thread, so that a run ends with a word in its status."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(f"ended by {signal.Signals(number).name}")
