"""``mode=plan`` of a sweep: every job, and nothing that is started or written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.configure.command_line import name_of
from launcher.configure.start import first_rank
from launcher.files import below
from launcher.plan import NOTHING, plan_lines
from launcher.sweep.composer import Composer
from launcher.sweep.jobs import Job, Record, Source
from launcher.sweep.sweeper import Settings
from launcher.sweep.words import ranges
from samplers.words import counted


@dataclass
class Plan:
    """A sweep whose jobs are shown.

    Attributes:
        composer: makes the jobs.
        settings: of the sweep.
        plans: yes.
    """

    composer: Composer
    settings: Settings
    plans: bool = True

    @property
    def metric(self) -> str | None:
        """``sweep.metric``."""
        return self.settings.sweep.metric

    @property
    def sweep_dir(self) -> Path:
        """The folder that the sweep would have."""
        return self.settings.folder

    @property
    def parallel(self) -> int:
        """How many jobs would run at a time."""
        return self.composer.crew.parallel

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """A job, composed and checked."""
        return self.composer.compose(number, overrides)

    def run(self, source: Source) -> list[Record]:
        """Show the jobs that are known."""
        jobs = []
        while (job := source.ask()) is not None:
            jobs.append(job)
        sys.stdout.write(self._text(jobs))
        return []

    def _text(self, jobs: list[Job]) -> str:
        at_a_time = f"{self.parallel} at a time" if self.parallel > 1 else "one at a time"
        lines = [f"sweep            {counted(len(jobs), 'job')}, {at_a_time}, in {self.sweep_dir}"]
        lines += [f"note: {note}" for note in self.composer.line.notes]
        lines += [f"job {job.number:<13}{_apart(job)}  in {below(job.run_dir, self.sweep_dir)}" for job in jobs]
        plans: dict[tuple[str, ...], list[str]] = {}
        for job in jobs:
            plans.setdefault(self._plan_of(job), []).append(str(job.number))
        for plan, numbers in plans.items():
            lines += ["", "every job" if len(plans) == 1 else f"job {ranges(numbers)}", *plan]
        return "\n".join([*lines, NOTHING, ""])

    def _plan_of(self, job: Job) -> tuple[str, ...]:
        return tuple(plan_lines(job.run, first_rank(job.run.launch, self.composer.rank), job.notes))


def _apart(job: Job) -> str:
    return " ".join(text for text in job.overrides if name_of(text) != "mode")
