"""Where the user sees the sweep while it goes: a table that lives on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from launcher.sweep.changes import About, changes, failures
from launcher.sweep.jobs import FAILED, RUNNING, WAITING, Record, View
from launcher.sweep.parameters import varying
from launcher.sweep.results import best, value_words
from launcher.sweep.table import table
from launcher.sweep.words import by_state, progress

BETWEEN_S = 0.25
"""Seconds between two pictures of the table."""
AROUND = 6
"""Lines of the terminal that are not rows of the table."""
MOST_ROWS = 30
FIRST = {RUNNING: 0, FAILED: 1}
"""States whose jobs are shown before others."""


class Unheard:
    """A stream whose reader may go, as that of a pipe does: what is written then is lost, and no more than that.

    Args:
        stream: the one that is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, where somebody reads."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, where somebody reads."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Whatever else the stream is."""
        return getattr(self._stream, name)


def console_of(stream: TextIO | None) -> Console:
    """A console that writes to a stream for as long as somebody reads; to nobody where there is none."""
    return Console(file=Unheard(stream)) if stream else Console(file=StringIO())  # type: ignore[arg-type]


@contextmanager
def view_of(console: Console, about: About, clock: Callable[[], float] = time.monotonic) -> Iterator[View]:
    """A table for the length of the block where the console is a terminal; else a line for each change.

    Args:
        console: where the user looks.
        about: the sweep.
        clock: seconds.
    """
    if not (console.is_interactive and console.encoding.startswith("utf")):
        yield Lines(console, about)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live, about, clock)


class Lines:
    """A line for each change.

    Args:
        console: where they are printed.
        about: the sweep.
    """

    def __init__(self, console: Console, about: About) -> None:
        self._console = console
        self._about = about
        self._seen: list[Record] | None = None

    def show(self, records: list[Record]) -> None:
        """Tell what is new."""
        if records != self._seen:
            for line in changes(self._seen, records, self._about):
                self.say(line)
            self._seen = list(records)

    def say(self, text: str) -> None:
        """One line."""
        say(self._console, text)


class LiveTable:
    """A table that is drawn anew where something changed, now and then; failures are lines that stay above it.

    Args:
        live: where it is drawn.
        about: the sweep.
        clock: seconds.
    """

    def __init__(self, live: Live, about: About, clock: Callable[[], float]) -> None:
        self._live = live
        self._about = about
        self._clock = clock
        self._seen: list[Record] | None = None
        self._drawn: list[Record] | None = None
        self._next = clock()

    def show(self, records: list[Record]) -> None:
        """Tell which jobs failed, and draw the table if it is time."""
        if records != self._seen:
            for failure in failures(records if self._seen is None else self._seen, records, self._about.root):
                self.say(failure)
            self._seen = list(records)
        if self._seen != self._drawn and self._clock() >= self._next:
            self._live.update(picture_of(self._seen, self._about, self._live.console), refresh=True)
            self._drawn, self._next = self._seen, self._clock() + BETWEEN_S

    def say(self, text: str) -> None:
        """One line above the table."""
        say(self._live.console, text)


def say(console: Console, text: str) -> None:
    """Print a line as it is, in letters that the console has."""
    letters = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(letters, markup=False, highlight=False, emoji=False, soft_wrap=True)


def picture_of(records: Sequence[Record], about: About, console: Console) -> RenderableType:
    """The jobs that matter now, how many the others are, and how far all is."""
    keys, rows = varying(records), worth_seeing(records, min(MOST_ROWS, max(console.height - AROUND, 1)))
    kept = {record.number for record in rows}
    others = [record for record in records if record.number not in kept]
    rest = [Text(f"and {len(others)} more: {by_state(others)}", "dim")] if others else []
    found = best(records, about.metric)
    so_far = f"; best so far: job {found.number}, {value_words(found, about.metric)}" if found and about.metric else ""
    foot = Text(f"{progress(records, about.total)}{so_far}", "bold")
    return Group(*table(rows, keys, about.metric, console.width), *rest, foot)


def worth_seeing(records: Sequence[Record], most: int) -> list[Record]:
    """All, where they are no more than ``most``; else those that run, those that failed and the last that are over."""
    if len(records) <= most:
        return list(records)
    begun = [record for record in records if record.state != WAITING]
    first = sorted(begun, key=lambda record: (FIRST.get(record.state, len(FIRST)), -record.number))[:most]
    return sorted(first, key=lambda record: record.number)
