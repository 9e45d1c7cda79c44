"""``mode=plan`` of a sweep: every job, and nothing that is started or written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.plan import plan_text
from launcher.sweep.composer import Composer
from launcher.sweep.jobs import Job, Record, Source
from launcher.sweep.sweeper import Settings


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
        lines = [f"sweep            {len(jobs)} jobs, {at_a_time}, in {self.sweep_dir}"]
        for job in jobs:
            lines += [f"\njob {job.number:<13}{' '.join(job.overrides)}", self._of(job)]
        return "\n".join([*lines, "\nmode=plan: nothing was started, nothing was written\n"])

    def _of(self, job: Job) -> str:
        rank = replace(self.composer.rank, world_size=job.world_size)
        return plan_text(job.run, rank, job.run_dir, list(job.notes))
