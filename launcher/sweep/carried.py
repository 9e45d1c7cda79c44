"""A sweep whose jobs run: from the sweeper's first job to the results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from launcher.files import below, replace_file
from launcher.processes import errors
from launcher.processes.errors import SettingsError, first_line
from launcher.sweep.changes import About
from launcher.sweep.composer import Composer
from launcher.sweep.engine import Engine
from launcher.sweep.hparams import write_hparams
from launcher.sweep.jobs import DONE, Job, Record, Source, View
from launcher.sweep.ledger import NAME, Ledger
from launcher.sweep.picture import picture
from launcher.sweep.plugin import Listed
from launcher.sweep.results import best, summary, to_csv
from launcher.sweep.view import view_of

RESULTS = "results.csv"
PICTURE = "results.png"
TOLD_AT_ONCE = ("plan", "inspect")
"""Modes of a command that shows something and is over."""


@dataclass
class Carried:
    """A sweep as sweepers drive it.

    Attributes:
        composer: makes jobs.
        engine: runs them.
        console: where the user looks.
        held: ends what is seen there.
        plans: no.
    """

    composer: Composer
    engine: Engine
    console: Console
    held: ExitStack
    plans: bool = False
    _seen: bool = field(default=False, init=False)

    @property
    def metric(self) -> str | None:
        """``sweep.metric``."""
        return self.engine.metric

    @property
    def sweep_dir(self) -> Path:
        """The folder of the sweep."""
        return self.engine.ledger.sweep_dir

    @property
    def parallel(self) -> int:
        """How many jobs run at a time."""
        return self.engine.crew.parallel

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """A job, composed and checked, under the number that it has if an earlier start knew it."""
        own = self.composer.own(overrides)
        job = self.composer.compose(self.engine.ledger.number_for(own, number), own)
        self.engine.ledger.check_folder(job)
        if job.run.mode in TOLD_AT_ONCE:
            raise SettingsError(f"job {job.number}: mode={job.run.mode} runs nothing; give the whole sweep mode=plan")
        return job

    def run(self, source: Source) -> list[Record]:
        """Run jobs until the source has no more; returns what is known of all, by number."""
        ledger = self.engine.ledger
        for job in source.jobs if isinstance(source, Listed) else ():
            ledger.of(job)
        if not self._seen:
            self._seen = True
            self._show(len(ledger.records) if isinstance(source, Listed) else None)
        self.engine.run(source)
        return ledger.records

    def _show(self, total: int | None) -> None:
        about = About(total, self.metric, from_here(self.sweep_dir), self.engine.crew.devices)
        self.engine.view = self.held.enter_context(view_of(self.console, about))
        handler = ToView(self.engine.view)
        logging.getLogger("launcher").addHandler(handler)
        self.held.callback(logging.getLogger("launcher").removeHandler, handler)
        for note in self.composer.line.notes:
            self.engine.view.say(f"note: {note}")
        self.engine.view.show(self.engine.ledger.records)

    def conclude(self) -> int:
        """Write the results and tell of them; returns the exit status."""
        records, shown = self.engine.ledger.records, from_here(self.sweep_dir)
        state, status = _end_of(records, preempted=self.engine.signals.wish is not None)
        if self.engine.halted and status != errors.PREEMPTED:
            state, status = "failed", errors.FAILED
        found = best(records, self.metric)
        command = self.composer.command_of(found.overrides) if found else None
        lines = [summary(records, self.metric, command, shown, self.console.width).rstrip()]
        if status != errors.FINISHED:
            lines.append(f"go on with       {self.composer.command_to_go_on(shown)}")
        _print(lines)
        _print(write_results(self.engine.ledger, state, self.metric))
        return status


def _end_of(records: Sequence[Record], *, preempted: bool) -> tuple[str, int]:
    """State and exit status of a sweep whose jobs stand like this."""
    if preempted:
        return "preempted", errors.PREEMPTED
    if all(record.state in DONE for record in records):
        return "finished", errors.FINISHED
    return "failed", errors.FAILED


def write_results(ledger: Ledger, state: str, metric: str | None) -> list[str]:
    """Write file, table, picture and hyperparameters of a sweep; returns what could not be, a line each.

    Args:
        ledger: of the sweep.
        state: as ``Ledger.write`` takes it.
        metric: ``sweep.metric``.
    """
    records, folder = ledger.records, ledger.sweep_dir
    lacks = [
        _written(folder / NAME, lambda: ledger.write(state)),
        _written(folder / RESULTS, lambda: replace_file(folder / RESULTS, to_csv(records))),
        _written(folder / "the HPARAMS page", lambda: write_hparams(records, metric, folder)),
        _drawn(folder / PICTURE, lambda: picture(records, metric, folder / PICTURE) if metric else None),
    ]
    return [lack for lack in lacks if lack]


def _written(path: Path, write: Callable[[], None]) -> str | None:
    """What the user is told where it cannot be; the others are written all the same."""
    try:
        write()
    except OSError as error:
        return f"{path.name} cannot be written to {path.parent}: {error}"
    return None


def _drawn(path: Path, draw: Callable[[], str | None]) -> str | None:
    try:
        return draw()
    except Exception as error:  # noqa: BLE001 - a picture is a courtesy, and draws what users call their settings
        return f"{path.name} is not drawn: {first_line(error)}"


def _print(lines: list[str]) -> None:
    if sys.stdout is None:  # it was closed before Python began
        return
    with suppress(OSError):  # nobody reads any more
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


class ToView(logging.Handler):
    """Warnings are lines of what the user sees.

    Args:
        view: that.
    """

    def __init__(self, view: View) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        self._view.say(record.getMessage())


def from_here(folder: Path) -> Path:
    """As seen from here, where it lies below."""
    return below(folder, Path.cwd())
