"""The sweep as Hydra's sweepers see it: a launcher that they hand jobs to."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.plugin import Plugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher.processes.errors import SettingsError
from launcher.sweep.jobs import Job, Record, Source

MODULE = "hydra_plugins.evenshard"
"""Hydra makes plugins only of what bears the name of this package."""
TARGET = f"{MODULE}.JobLauncher"


class Sweep(Protocol):
    """What a sweeper can have done.

    Attributes:
        metric: ``sweep.metric``: accuracy where the highest is best, -loss where the lowest is; None: nothing.
        sweep_dir: the folder of the sweep.
        parallel: how many jobs run at a time.
        plans: whether jobs are shown and none is run.
    """

    @property
    def metric(self) -> str | None: ...  # noqa: D102

    @property
    def sweep_dir(self) -> Path: ...  # noqa: D102

    @property
    def parallel(self) -> int: ...  # noqa: D102

    @property
    def plans(self) -> bool: ...  # noqa: D102

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """A job, composed and checked; it may get another number where a job of an earlier start has this one."""

    def run(self, source: Source) -> list[Record]:
        """Run jobs until the source has no more; returns those that are over, by number."""


class Listed:
    """Jobs that are known before the first of them starts.

    Args:
        jobs: in the order in which they start.

    Attributes:
        jobs: as given.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = list(jobs)
        self._next = iter(self.jobs)

    def ask(self) -> Job | None:
        """The next one."""
        return next(self._next, None)

    def tell(self, record: Record) -> None:
        """Nothing is learned from it."""

    def prunes(self, record: Record) -> bool:
        """Every job goes on to its end."""
        del record
        return False


class JobLauncher(Launcher):
    """Hands a sweeper's jobs to the sweep, which comes in as the function to call with them."""

    __module__ = MODULE

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take the sweep."""
        del hydra_context, config
        self.sweep: Sweep = task_function  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        """Sweepers of this package ask the sweep itself."""
        if name == "sweep":
            raise AttributeError(name)
        return getattr(self.sweep, name)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs; a job that failed returns NaN, and the sweep goes on."""
        if not job_overrides:
            raise SettingsError("the sweep has no jobs: give every setting that it is over at least one value")
        jobs = [self.sweep.compose(initial_job_idx + place, words) for place, words in enumerate(job_overrides)]
        records = {record.number: record for record in self.sweep.run(Listed(jobs))}
        return [_returned(job, records.get(job.number)) for job in jobs]


def register(*plugins: type[Plugin]) -> None:
    """Make plugins of ``MODULE`` known to Hydra, which finds them by that name alone."""
    package_name, _, name = MODULE.rpartition(".")
    try:
        package = import_module(package_name)
    except ModuleNotFoundError:  # no other plugin is installed
        package = sys.modules.setdefault(package_name, ModuleType(package_name))
    module = sys.modules.setdefault(MODULE, ModuleType(MODULE))
    setattr(package, name, module)
    for plugin in plugins:
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)


def _returned(job: Job, record: Record | None) -> JobReturn:
    value = math.nan if record is None or record.value is None else record.value
    found = JobReturn(list(job.overrides), working_dir=str(job.run_dir), status=JobStatus.COMPLETED)
    found.return_value = value
    return found
