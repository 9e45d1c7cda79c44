"""Jobs from overrides: composed and checked before the first of them starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.configure.command_line import CommandLine
from launcher.configure.compose import compose_job
from launcher.configure.devices import for_devices
from launcher.configure.given import Given
from launcher.configure.start import first_rank
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.sweep.crew import Crew
from launcher.sweep.jobs import Job
from launcher.training.best import BestRule


@dataclass(frozen=True)
class Composer:
    """Composes jobs.

    Attributes:
        line: the command line of the sweep.
        hydra_overrides: those of Hydra's own settings, which every job has.
        sweep_dir: the folder of the sweep.
        rank: this process.
        crew: that is to run the jobs.
    """

    line: CommandLine
    hydra_overrides: tuple[str, ...]
    sweep_dir: Path
    rank: Rank
    crew: Crew

    def line_of(self, overrides: Sequence[str]) -> CommandLine:
        """The command line of a job."""
        return replace(self.line, overrides=(*self.hydra_overrides, *overrides), multirun=False)

    def compose(self, number: int, overrides: Sequence[str]) -> Job:
        """Compose and check a job.

        Raises:
            SettingsError: for whatever is wrong with its settings, and with which job.
        """
        try:
            return self._compose(number, tuple(overrides))
        except SettingsError as error:
            raise SettingsError(f"job {number} ({' '.join(overrides)}): {error}") from error

    def _compose(self, number: int, overrides: tuple[str, ...]) -> Job:
        line = self.line_of(overrides)
        composed = compose_job(line, number, self.sweep_dir)
        world_size = first_rank(composed.run.launch, self.rank).world_size
        self.crew.check(world_size)
        run, notes = for_devices(composed.run, world_size)
        evaluated = ["loss", *run.metrics] if run.data.test else []
        BestRule.parse(run.sweep.metric, evaluated, "sweep.metric")
        command = Given(str(Path.cwd()), line).to_json()
        return Job(number, overrides, run, composed.run_dir, composed.chdir, tuple(notes), world_size, command)
