"""What a sweep is made of: jobs, what became of them, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher.configure.schema import RunConfig

CONSOLE = "console.log"
"""What the processes of a job print, in its run folder."""
WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"
PRUNED = "pruned"
FAILED = "failed"
PREEMPTED = "preempted"

DONE = (FINISHED, STOPPED, PRUNED)
"""States of a job that is not run again: it came to its end, by its own rule, or was not worth going on with."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep, composed and checked.

    Attributes:
        number: 0, 1, 2, ... in the order of the sweep.
        overrides: what sets it apart, as Hydra's sweeper gave it, such as ``("optimizer.lr=0.1", "seed=1")``.
        run: its settings.
        run_dir: its run folder.
        chdir: whether it works inside that folder.
        notes: what the user should know, said in its log.
        world_size: its ranks, over all nodes.
        command: that begins this run alone, as its run folder keeps it.
    """

    number: int
    overrides: tuple[str, ...]
    run: RunConfig
    run_dir: Path
    chdir: bool = False
    notes: tuple[str, ...] = ()
    world_size: int = 1
    command: str = ""


@dataclass(frozen=True)
class Record:
    """What is known of a job; a line of ``sweep.json``.

    Attributes:
        number: of the job.
        overrides: of the job.
        folder: its run folder; inside the sweep's folder, relative to it.
        state: waiting, running, finished, stopped (by its own rule), pruned, failed or preempted (with a checkpoint).
        step: optimizer steps done.
        metrics: the last value of each, as status.json has them.
        value: of ``sweep.metric`` at the end; None where there is none.
        seconds: spent on it, restarts included.
        attempts: how often its processes were started.
        devices: those that it has, or had last.
        cause: why it failed, in one line.
        same_as: the job of the same settings whose results these are; None: its own.
    """

    number: int
    overrides: tuple[str, ...]
    folder: str
    state: str = WAITING
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    value: float | None = None
    seconds: float = 0.0
    attempts: int = 0
    devices: tuple[str, ...] = ()
    cause: str = ""
    same_as: int | None = None


class Source(Protocol):
    """Where jobs come from: a list, or a search that learns from those that are over."""

    def ask(self) -> Job | None:
        """The next job; None: none now, and none later either unless a job that runs is told of."""

    def tell(self, record: Record) -> None:
        """A job is over."""

    def prunes(self, record: Record) -> bool:
        """Whether a job that runs is not worth going on with, by its metrics so far."""


class View(Protocol):
    """Where the user sees the sweep."""

    def show(self, records: list[Record]) -> None:
        """The jobs as they stand; called before the first is started, and then often, also where nothing changed."""

    def say(self, text: str) -> None:
        """One line that stays."""
