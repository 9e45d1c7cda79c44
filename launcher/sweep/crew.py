"""Who runs a job: this process alone, with several jobs at a time on the devices of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from launcher.processes.environment import World, inherited
from launcher.processes.forked import NOT_STARTED
from launcher.processes.store import new_store
from launcher.sweep.jobs import Job
from launcher.sweep.pool import Devices, Pool
from launcher.sweep.ranks import Ranks, start_rank


class Team(Protocol):
    """The processes of a job that runs."""

    def statuses(self) -> dict[int, int]:
        """Exit statuses of the ranks that have ended; of a signal: its number below zero."""

    def tell(self, number: int) -> None:
        """Send a signal to the ranks that run."""

    def close(self) -> None:
        """The job is over: leave nothing of it."""


class Crew(Protocol):
    """Starts the processes of jobs.

    Attributes:
        parallel: how many jobs run at a time.
        devices: what its devices are called.
    """

    parallel: int
    devices: str

    def take(self, job: Job) -> tuple[str, ...] | None:
        """Devices for a job; None where too few are free."""

    def start(self, job: Job, order: Path, devices: tuple[str, ...], attempt: int) -> Team:
        """Start the ranks of a job on its devices."""

    def give_back(self, devices: tuple[str, ...]) -> None:
        """The job that had these devices is over."""

    def check(self, world_size: int) -> None:
        """Refuse a job of more ranks than can ever run.

        Raises:
            SettingsError: with both numbers.
        """


class Alone:
    """This process starts all ranks of a job, and several jobs at a time, on devices of this machine.

    Args:
        devices: those there are.
        parallel: how many jobs run at a time.
        environment: of this process.
    """

    def __init__(self, devices: Devices, parallel: int, environment: Mapping[str, str]) -> None:
        self.parallel = parallel
        self.devices = "GPUs" if devices.kind == "cuda" else "cores"
        self._devices, self._pool = devices, Pool(devices.names, parallel)
        self._environment = inherited(environment)

    def check(self, world_size: int) -> None:
        """On CUDA each rank has a device of its own."""
        self._devices.parallel(None, world_size)

    def take(self, job: Job) -> tuple[str, ...] | None:
        """Devices of this machine."""
        return self._pool.take(self._devices.for_job(job.world_size, self.parallel))

    def give_back(self, devices: tuple[str, ...]) -> None:
        """They are free for the next job."""
        self._pool.give_back(devices)

    def start(self, job: Job, order: Path, devices: tuple[str, ...], attempt: int) -> Team:
        """Start the ranks, with nothing but their own devices in sight."""
        store = new_store()
        world = World(job.world_size, "127.0.0.1", store.port, attempt, job.run.launch.max_restarts)
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if self._devices.kind == "cuda" else {}
        cores = tuple(map(int, devices)) if self._devices.kind == "cpu" else ()
        ranks = Ranks(store, {})
        try:
            for rank in range(job.world_size):
                variables = {**self._environment, **shown, **world.variables(rank, rank, job.world_size)}
                ranks.processes[rank] = start_rank(order, variables, cores)
        except NOT_STARTED:
            ranks.close()
            raise
        return ranks
