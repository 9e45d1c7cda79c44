"""Jobs from overrides: composed and checked before the first of them starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from launcher.configure.command_line import CommandLine, command_of, name_of
from launcher.configure.compose import compose_job, without_swept
from launcher.configure.devices import for_devices
from launcher.configure.given import Given, quoted
from launcher.configure.launch import LaunchConfig
from launcher.configure.start import first_rank
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.sweep.jobs import CONSOLE, Job
from launcher.sweep.ledger import key_of
from launcher.training.best import BestRule

OWN_FOLDERS = "each job needs one of its own, as with hydra.sweep.subdir='${hydra.job.num}'"


class Room(Protocol):
    """Where jobs are to run.

    Attributes:
        parallel: how many do at a time.
    """

    parallel: int

    def check(self, world_size: int) -> None:
        """Refuse a job of more ranks than can ever run.

        Raises:
            SettingsError: with both numbers.
        """


@dataclass(frozen=True)
class Composer:
    """Composes jobs.

    Attributes:
        line: the command line of the sweep.
        hydra_overrides: those of Hydra's own settings, which every job has.
        how: overrides that say how jobs are carried out, not which they are; every job has them.
        sweep_dir: the folder of the sweep.
        rank: this process.
        crew: that is to run the jobs, or whatever else has room for them.
        owners: run folders of the jobs so far, each with the number and the effective overrides of its job.
    """

    line: CommandLine
    hydra_overrides: tuple[str, ...]
    how: tuple[str, ...]
    sweep_dir: Path
    rank: Rank
    crew: Room
    owners: dict[Path, tuple[int, str]] = field(default_factory=dict)

    def own(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """What sets a job apart, of all its overrides."""
        others = {name_of(text) for text in self.how}
        return tuple(text for text in overrides if name_of(text) not in others)

    def command_of(self, overrides: Sequence[str]) -> str:
        """The command that starts a job as a run by itself.

        Args:
            overrides: those that set it apart.
        """
        processes = [text for text in self.how if name_of(text).startswith("launch.")]
        line = replace(self.line, overrides=(*processes, *overrides), multirun=False)
        return command_of(line, self.rank.world_size)

    def command_to_go_on(self, sweep_dir: Path) -> str:
        """The command that goes on with the sweep."""
        kept = [text for text in self.line.overrides if name_of(text) != "hydra.sweep.dir"]
        line = replace(self.line, overrides=(f"hydra.sweep.dir={quoted(str(sweep_dir))}", *kept))
        return command_of(line, self.rank.world_size)

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """Compose and check a job.

        Raises:
            SettingsError: for whatever is wrong with its settings, and with which job.
        """
        try:
            return self._compose(number, self.own(overrides))
        except SettingsError as error:
            raise SettingsError(f"job {number} ({' '.join(self.own(overrides))}): {error}") from error

    def _compose(self, number: int, overrides: tuple[str, ...]) -> Job:
        line = replace(self.line, overrides=(*self.hydra_overrides, *self.how, *overrides))
        composed = compose_job(line, number, self.sweep_dir)
        self._check_folder(number, overrides, composed.run_dir)
        _check_logs(composed.run.launch)
        world_size = first_rank(composed.run.launch, self.rank).world_size
        self.crew.check(world_size)
        run, notes = for_devices(composed.run, world_size)
        evaluated = ["loss", *run.metrics] if run.data.test else []
        BestRule.parse(run.sweep.metric, evaluated, "sweep.metric")
        command = Given(str(Path.cwd()), replace(line, multirun=False)).to_json()
        return Job(number, overrides, run, composed.run_dir, composed.chdir, tuple(notes), world_size, command)

    def _check_folder(self, number: int, overrides: Sequence[str], run_dir: Path) -> None:
        """Refuse a folder of another job: it would go on with what that has done, and pass for it."""
        if run_dir == self.sweep_dir:
            raise SettingsError(f"hydra.sweep.subdir gives it the folder of the sweep, {run_dir}; {OWN_FOLDERS}")
        if name := too_long(run_dir):
            raise SettingsError(
                f"hydra.sweep.subdir gives it a folder whose name has {len(os.fsencode(name))} bytes, which the file "
                f"system does not take; {OWN_FOLDERS}"
            )
        own = key_of(overrides)
        owner, key = self.owners.setdefault(run_dir, (number, own))
        if key != own:
            raise SettingsError(f"hydra.sweep.subdir gives it the folder of job {owner}, {run_dir}; {OWN_FOLDERS}")


def too_long(folder: Path) -> str:
    """The name in a path that the file system does not take for its length, or all of the path; empty: it takes it."""
    there = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    names = [name for name in folder.relative_to(there).parts if _is_too_long(there / name)]
    return names[0] if names else str(folder) if _is_too_long(folder) else ""


def _is_too_long(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def _check_logs(launch: LaunchConfig) -> None:
    if launch.log_dir and launch.engine == "local":
        raise SettingsError(
            f"launch.log_dir={launch.log_dir} is for a run by itself: what the ranks of a job print is in {CONSOLE} of "
            "its run folder; leave it out"
        )


def how_of(line: CommandLine) -> tuple[str, ...]:
    """The overrides of a command line that say how its jobs are carried out: of ``launch`` and ``sweep``, one value."""
    return tuple(text for text in without_swept(line).overrides if name_of(text).startswith(("launch.", "sweep.")))
