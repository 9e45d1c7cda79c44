"""Signals that end a run: noted while it trains, so that it stops after a whole step; obeyed at once before that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

import psutil

from launcher.processes.early import ENDING, nothing_began
from launcher.processes.errors import FAILED, PREEMPTED

SAME_S = 3.0
"""Seconds for which further signals are the first once more: schedulers signal every process, launchers forward it."""
ORPHANED = "the end of its launcher"
ASKERS = (*(number.name for number in ENDING), ORPHANED)
GRACE_S = 5.0
"""Seconds that a main thread has to obey; one that waits inside a library never does."""
WORDS_S = 2.0
"""Seconds for the last words of a process whose main thread did not obey; who keeps the store may be gone."""


@dataclass(frozen=True)
class Wish:
    """What asks for the end of a run, one of ``ASKERS``, and the rank that was asked."""

    by: str
    rank: int

    def __str__(self) -> str:
        return f"{self.by} on rank {self.rank}"


class Preempted(KeyboardInterrupt):
    """A signal asks for the end, and nothing would be lost by it; the text names the signal."""


class Terminated(KeyboardInterrupt):
    """A further signal asks for the end at once."""


class Signals:
    """What signals ask of this process.

    Until the run trains a signal raises ``Preempted`` in the main thread; while it trains the first one is noted and
    a later one raises ``Terminated``; after that they change nothing. A main thread that cannot raise, since it waits
    inside a library, gets some seconds of grace; the process then ends with a word.

    Args:
        rank: this process.

    Attributes:
        wish: the first that came, also of another rank; None: there is none.
    """

    def __init__(self, rank: int) -> None:
        self.wish: Wish | None = None
        self._rank = rank
        self._numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
        self._first: Wish | None = None
        self._heard_at = 0.0
        self._passed: int | None = None
        self._tell: Callable[[KeyboardInterrupt], object] = lambda error: nothing_began(str(error), rank)
        self._notes = False
        self._over = False

    def listen(self) -> None:
        """From here on, in the main thread; a signal that whoever started the process lets it ignore stays ignored."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._end_after_grace, args=(reader, writer), daemon=True).start()
        self.obey()
        os.register_at_fork(after_in_child=_forget)

    def obey(self) -> None:
        """From here on signals are for this process."""
        self._over = False
        for number in self._numbers:
            signal.signal(number, self._hear)

    def tell_with(self, tell: Callable[[KeyboardInterrupt], object]) -> None:
        """From here on ``tell`` tells the user what ends the process where the main thread cannot raise it."""
        self._tell = tell

    def pass_on(self, processes: Collection[int]) -> None:
        """From here on signals are for other processes alone, also one that was passed on to those before them."""
        self.ignore()
        for number in ENDING:
            signal.signal(number, partial(self._pass_on, processes) if number in self._numbers else signal.SIG_IGN)
        if self._passed is not None:
            self._pass_on(processes, self._passed, None)

    def note(self, wish: Wish) -> None:
        """Somebody asks for the end as a signal would."""
        if self.wish is None:
            self.wish = wish

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals for the length of the block; afterwards they change nothing."""
        self._notes = True
        try:
            yield
        finally:
            self.ignore()

    def ignore(self) -> None:
        """From here on the process ends by itself: signals change nothing."""
        self._over = True

    @property
    def notes(self) -> bool:
        """Whether the run trains: a signal is noted, and there may be something to keep."""
        return self._notes

    @property
    def passed_on(self) -> bool:
        """Whether a signal came that was for other processes."""
        return self._passed is not None

    @property
    def over(self) -> bool:
        """Whether the process ends by itself."""
        return self._over

    def _pass_on(self, processes: Collection[int], number: int, _frame: FrameType | None) -> None:
        self._passed = number
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        name, before, now = signal.Signals(number).name, self._first, time.monotonic()
        if self._over or (before and now - self._heard_at < SAME_S):
            return
        if before is None:
            self._first, self._heard_at = Wish(name, self._rank), now
            self.note(self._first)
        if not self._notes or before:
            raise self._ending(name, before)

    def _ending(self, name: str, first: Wish | None) -> KeyboardInterrupt:
        return (
            Terminated(f"stopped at once by {name}, a second signal after {first}") if self._notes else Preempted(name)
        )

    def _end_after_grace(self, reader: socket.socket, _writer: socket.socket) -> None:
        """Wait for the bytes that Python writes when signals arrive, whatever the main thread is in."""
        first: Wish | None = None
        heard_at = 0.0
        while True:
            number, now = reader.recv(1)[0], time.monotonic()
            if number not in ENDING or (first and now - heard_at < SAME_S):
                continue
            name = signal.Signals(number).name
            at_once = first or not self._notes
            first, heard_at = first or Wish(name, self._rank), heard_at or now
            if at_once:
                time.sleep(GRACE_S)
                if not self._over:
                    why = self._ending(name, first)
                    end_with_a_word(partial(self._tell, why), PREEMPTED if isinstance(why, Preempted) else FAILED)


def end_with_a_word(tell: Callable[[], object], exit_status: int) -> None:
    """End this process from any thread once ``tell`` is done, or has had its seconds: what it needs may be gone."""
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    teller.join(WORDS_S)
    end_now(exit_status)


def end_now(exit_status: int) -> None:
    """End this process from any thread, and the processes that it started."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(exit_status)


def lives(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        return bool(psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def kill_workers() -> None:
    """At the end of this process: its loader workers ignore that they are asked to end, and it would wait for them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take their end for a failure
    for worker in multiprocessing.active_children():
        if worker.daemon:  # the others are the user's own, and waited for
            worker.kill()


@contextmanager
def held_back() -> Iterator[None]:
    """Let signals wait for the length of the block; a process that is forked in it never sees them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """In a process that ends with its parent: signals change nothing."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """In a forked process: it is asked to end as any other."""
    signal.set_wakeup_fd(-1)
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
