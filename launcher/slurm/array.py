"""A sweep as a Slurm job array: all jobs are submitted at once, and what became of them is read from their folders."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from launcher.observe.status import NAME as STATUS
from launcher.observe.status import read_status
from launcher.processes import errors
from launcher.processes.errors import SettingsError
from launcher.slurm.queue import SCRIPT, arrays_of, note_array, submit, tasks_in_queue
from launcher.slurm.run import in_a_job, size_of
from launcher.slurm.script import Place, array_script
from launcher.sweep.carried import from_here, write_results
from launcher.sweep.composer import Composer
from launcher.sweep.jobs import DONE, FAILED, RUNNING, WAITING, Job, Record, Source
from launcher.sweep.ledger import Ledger
from launcher.sweep.order import NAME, leave_order
from launcher.sweep.outcome import cause_of, value_of
from launcher.sweep.plan import Plan
from launcher.sweep.plugin import Listed
from launcher.sweep.results import best, summary
from launcher.sweep.sweeper import Settings, Sweeper
from samplers.words import counted

OUTPUT = "slurm-%A_%a.out"
WITHOUT_EFFECT = {"job_timeout_s": "launch.slurm.time limits each job", "on_failure": "each job ends for itself"}
"""Settings of sweeps that have no effect here, and why."""
SHARED = ("nodes", "processes", "slurm", "rdzv_endpoint")
"""Settings of launch that are the same for all tasks of an array."""


class Queue:
    """Where jobs of an array run: elsewhere, as many at a time as Slurm finds room for.

    Args:
        asked: ``sweep.parallel``.
    """

    def __init__(self, asked: int | None) -> None:
        self.parallel = asked or 0

    def check(self, world_size: int) -> None:
        """Slurm says itself what is too much."""


@dataclass
class Array:
    """A sweep whose jobs become tasks of a job array.

    Attributes:
        composer: makes jobs.
        settings: of the sweep.
        ledger: of the sweep.
        notes: what the user should know.
        plans: no.
        jobs: so far.
    """

    composer: Composer
    settings: Settings
    ledger: Ledger
    notes: list[str]
    plans: bool = False
    jobs: list[Job] = field(default_factory=list)

    @property
    def metric(self) -> str | None:
        """``sweep.metric``."""
        return self.settings.sweep.metric

    @property
    def sweep_dir(self) -> Path:
        """The folder of the sweep."""
        return self.ledger.sweep_dir

    @property
    def parallel(self) -> int:
        """How many jobs run at a time at most; 0: nobody says."""
        return self.settings.sweep.parallel or 0

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """A job, composed and checked, under the number that it has if an earlier start knew it."""
        own = self.composer.own(overrides)
        return job_of(self.composer, self.ledger.number_for(own, number), own)

    def run(self, source: Source) -> list[Record]:
        """Take down the jobs; returns what is known of all, by number."""
        assert isinstance(source, Listed)  # noqa: S101 - other sweepers were refused
        self.jobs += source.jobs
        for job in source.jobs:
            self.ledger.of(job)
        return self.ledger.records

    def conclude(self) -> int:
        """Submit the jobs that are neither over nor in the queue, and tell how all stand; returns the exit status."""
        queued = tasks_in_queue(arrays_of(self.sweep_dir))
        for record in self.ledger.records:
            self.ledger.note(self._now(record, record.number in queued))
        over = {record.number for record in self.ledger.records if record.state in DONE}
        told = self._submit([job for job in self.jobs if job.number not in queued | over])
        is_over = len(over) == len(self.ledger.records)
        lines = [*(f"note: {note}" for note in self.notes), *self._results("finished" if is_over else RUNNING), *told]
        if not is_over:
            lines.append(f"see what became  {self.composer.command_to_go_on(from_here(self.sweep_dir))}")
        sys.stdout.write("\n".join(lines) + "\n")
        return errors.FINISHED

    def _now(self, record: Record, queued: bool) -> Record:
        """How a job stands, by what it left in its folder."""
        folder = self.sweep_dir / record.folder
        if not (folder / STATUS).exists():
            return replace(record, state=WAITING)
        status = read_status(folder)
        gone = status.state == RUNNING and not queued
        cause = "its processes ended before the run did" if gone else ""
        if status.state == FAILED:
            cause = cause_of(status, {}, None)
        state = FAILED if gone else status.state
        value = value_of(status.metrics, self.metric) if state in DONE else None
        return replace(record, state=state, step=status.step, metrics=status.metrics, value=value, cause=cause)

    def _submit(self, jobs: list[Job]) -> list[str]:
        """Submit jobs; returns what the user is told."""
        if not jobs:
            return []
        text = script_of(jobs, self.settings, self.sweep_dir)
        for job in jobs:
            leave_order(job)
            self.ledger.note(replace(self.ledger.of(job), state=WAITING, cause="", value=None))
        self.ledger.write(RUNNING)
        submitted = submit(text, self.sweep_dir)
        note_array(self.sweep_dir, submitted.job)
        limit = f", {self.parallel} at a time" if self.parallel else ""
        output = self.sweep_dir / f"slurm-{submitted.job}_*.out"
        return [
            *submitted.said.splitlines(),
            f"Slurm array      {submitted.job}: {counted(len(jobs), 'job')}{limit}, {size_of(jobs[0].run.launch)}",
            f"script           {self.sweep_dir / SCRIPT}",
            f"output           {output}",
            f"follow it        squeue --jobs={submitted.job}",
        ]

    def _results(self, state: str) -> list[str]:
        records, lacks = self.ledger.records, write_results(self.ledger, state, self.metric)
        found = best(records, self.metric)
        command = self.composer.command_of(found.overrides) if found else None
        width = shutil.get_terminal_size().columns
        return [summary(records, self.metric, command, from_here(self.sweep_dir), width).rstrip(), *lacks]


class ArrayPlan(Plan):
    """A sweep whose jobs and script are shown."""

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """A job, composed and checked."""
        return job_of(self.composer, number, overrides)

    def _text(self, jobs: list[Job]) -> str:
        return f"{super()._text(jobs)}\n{script_of(jobs, self.settings, self.sweep_dir)}"


def check(sweeper: Sweeper, settings: Settings) -> list[str]:
    """Refuse a sweep that cannot be an array; returns what the user should know.

    Raises:
        SettingsError: where the sweeper chooses jobs by those before them.
    """
    target = str(sweeper.name.get("_target_"))
    if not target.endswith(".BasicSweeper"):
        raise SettingsError(
            f"launch.engine=slurm submits all jobs at once, and hydra/sweeper {target.rpartition('.')[2]} chooses some "
            "by the results of others; start that sweep inside a job of Slurm, without launch.engine"
        )
    default = type(settings.sweep)()
    changed = {name for name, value in asdict(settings.sweep).items() if value != getattr(default, name)}
    return [
        f"sweep.{name}={getattr(settings.sweep, name)} has no effect with launch.engine=slurm: {why}"
        for name, why in WITHOUT_EFFECT.items()
        if name in changed
    ]


def job_of(composer: Composer, number: int, overrides: Sequence[str]) -> Job:
    """A job with the number of ranks that Slurm starts for it."""
    job = composer.compose(number, overrides)
    return replace(job, run=in_a_job(job.run, composer.rank))


def script_of(jobs: Sequence[Job], settings: Settings, sweep_dir: Path) -> str:
    """The script of an array of jobs.

    Raises:
        SettingsError: where they do not share what Slurm is asked for, or for a path that sbatch cannot take.
    """
    launch = jobs[0].run.launch
    for job, name in itertools.product(jobs, SHARED):
        if getattr(job.run.launch, name) != getattr(launch, name):
            raise SettingsError(
                f"job {job.number} has another launch.{name} than job {jobs[0].number}, and the jobs of one array "
                "share it; submit a sweep for each"
            )
    orders = {job.number: job.run_dir / NAME for job in jobs}
    place = Place(sweep_dir, OUTPUT, Path.cwd())
    return array_script(launch, orders, settings.sweep.parallel, place, sys.executable)
