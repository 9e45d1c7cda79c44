"""Signals that end a run."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import NoReturn

GRACE_S = 5.0
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal."""


def end_on_sigterm() -> None:
    """Turn SIGTERM into an exception of the main thread, so that a run ends with a word in its status.

    A main thread that waits inside a collective cannot raise it; the process then ends after some seconds of grace.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_after_grace, args=(reader, writer), daemon=True).start()
    for number in ENDING:
        signal.signal(number, _raise)


def ignore_signals() -> None:
    """From here on the process ends by itself: signals change nothing."""
    for number in (*ENDING, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(
        f"ended by {signal.Signals(number).name}, which torchrun sends when another rank has failed or when it is told "
        "to end"
    )


def _end_after_grace(reader: socket.socket, _writer: socket.socket) -> None:
    """Wait for the byte that Python writes when SIGTERM arrives, in whatever the main thread is."""
    while reader.recv(1)[0] not in ENDING:
        pass
    time.sleep(GRACE_S)
    os._exit(1)
