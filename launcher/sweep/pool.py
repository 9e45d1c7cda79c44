"""The devices that jobs share, each of which serves one job at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from launcher.processes.errors import SettingsError
from samplers.words import counted


class Pool:
    """Devices that are handed out in disjoint sets.

    Args:
        devices: their names.
        jobs: how many jobs may hold devices at the same time; None: as many as get some.
    """

    def __init__(self, devices: Sequence[str], jobs: int | None = None) -> None:
        self._free = list(devices)
        self._order = {name: place for place, name in enumerate(devices)}
        self._jobs = jobs
        self._taken = 0

    def take(self, count: int) -> tuple[str, ...] | None:
        """``count`` devices that nobody else has, the first ones; None where there are too few."""
        if count > len(self._free) or self._taken == self._jobs:
            return None
        taken, self._free = tuple(self._free[:count]), self._free[count:]
        self._taken += 1
        return taken

    def give_back(self, devices: tuple[str, ...]) -> None:
        """Devices that ``take`` gave are free again."""
        self._free = sorted([*self._free, *devices], key=self._order.__getitem__)
        self._taken -= 1


@dataclass(frozen=True)
class Devices:
    """The devices of this machine.

    Attributes:
        kind: ``cuda`` or ``cpu``.
        names: CUDA devices as CUDA_VISIBLE_DEVICES names them, or the numbers of the cores that this process may use.
    """

    kind: str
    names: tuple[str, ...]

    @classmethod
    def here(cls, wanted: str, environment: Mapping[str, str]) -> Devices:
        """Those that ``launch.device`` asks for: ``auto`` is CUDA where there is any, else the CPU."""
        count = torch.cuda.device_count() if wanted != "cpu" else 0
        if count or wanted == "cuda":
            shown = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            return cls("cuda", tuple(shown[:count] if shown else map(str, range(count))))
        return cls("cpu", tuple(str(core) for core in sorted(os.sched_getaffinity(0))))

    def parallel(self, asked: int | None, processes: int) -> int:
        """How many jobs of so many processes run at a time.

        Args:
            asked: ``sweep.parallel``; None: one on the CPU, else as many as find devices.
            processes: of the job that has the most.

        Raises:
            SettingsError: where a job has more processes than there are CUDA devices, or ``asked`` is too much.
        """
        most = len(self.names) // (processes if self.kind == "cuda" else 1)
        if most == 0:
            raise SettingsError(
                f"launch.processes={processes} needs {counted(processes, 'CUDA device')}, and there are "
                f"{len(self.names)}; start fewer processes or set launch.device=cpu"
            )
        if asked is not None and asked > most:
            raise SettingsError(
                f"sweep.parallel={asked} is too much: {self._too_few(asked, processes)}; the most is {most}"
            )
        return asked or (most if self.kind == "cuda" else 1)

    def for_job(self, processes: int, parallel: int) -> int:
        """How many of the devices a job gets."""
        return processes if self.kind == "cuda" else len(self.names) // parallel

    def _too_few(self, jobs: int, processes: int) -> str:
        if self.kind == "cuda":
            devices = counted(jobs * processes, "CUDA device")
            needed = f"{jobs} jobs of {counted(processes, 'process')} need {devices}"
            return f"{needed}, and there are {len(self.names)}"
        return f"{jobs} jobs need a core each, and there are {len(self.names)}"
