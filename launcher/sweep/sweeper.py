"""Hydra's sweeper, which says which jobs there are, and the settings that a sweep itself has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher.configure.command_line import CommandLine, name_of
from launcher.configure.compose import compose_config, sweeper_config, without_swept
from launcher.configure.launch import LaunchConfig
from launcher.configure.sweep import SweepConfig
from launcher.processes.errors import SettingsError, first_line
from launcher.sweep.optuna_sweeper import OptunaSweeper
from launcher.sweep.plugin import TARGET, JobLauncher, Sweep, register


@dataclass(frozen=True)
class Settings:
    """What the command line says about the sweep as a whole.

    Attributes:
        sweep: the section of that name.
        launch: the section of that name; jobs may have other ``launch.processes``.
        mode: of the jobs.
        folder: as ``hydra.sweep.dir`` gives it, absolute.
        folder_is_new: whether it holds the time, so that every sweep has a folder of its own.
    """

    sweep: SweepConfig
    launch: LaunchConfig
    mode: str
    folder: Path
    folder_is_new: bool


@dataclass(frozen=True)
class Sweeper:
    """Hydra's sweeper for a command line.

    Attributes:
        config: that it is made of.
        loader: of the configs that its jobs are made of.
    """

    config: DictConfig
    loader: ConfigLoader

    @property
    def name(self) -> dict[str, Any]:
        """What it is and how it is set, by which a sweep is known again."""
        found: dict[str, Any] = OmegaConf.to_container(self.config.hydra.sweeper, resolve=True)  # type: ignore[assignment]
        return found

    @property
    def hydra_overrides(self) -> list[str]:
        """The overrides of Hydra's own settings, which every job has."""
        return self._overrides("hydra")

    def sweep(self, sweep: Sweep) -> None:
        """Have it hand all its jobs to ``sweep``.

        Raises:
            SettingsError: where it cannot make jobs of the overrides.
        """
        register(JobLauncher, OptunaSweeper)
        with TemporaryDirectory() as own, open_dict(self.config):
            self.config.hydra.launcher = {"_target_": TARGET}
            self.config.hydra.sweep.dir = own  # a sweeper's own files; the sweep keeps its own
            try:
                sweeper = Plugins.instance().instantiate_sweeper(
                    config=self.config,
                    hydra_context=HydraContext(config_loader=self.loader, callbacks=Callbacks()),
                    task_function=sweep,  # type: ignore[arg-type] # handed on to our launcher
                )
                sweeper.validate_batch_is_legal = lambda batch: None  # type: ignore[method-assign] # noqa: ARG005 - done here
                sweeper.sweep(arguments=self._overrides("task"))
            except HydraException as error:
                hint = "; search with hydra/sweeper=optuna" if "does not support sweep type" in str(error) else ""
                raise SettingsError(first_line(error) + hint) from error

    def _overrides(self, part: str) -> list[str]:
        """As they were given: what they refer to is that of each job."""
        found: list[str] = OmegaConf.to_container(self.config.hydra.overrides[part], resolve=False)  # type: ignore[assignment]
        return found


def sweeper_of(line: CommandLine) -> tuple[Sweeper, Settings]:
    """The sweeper and the settings of a sweep.

    Raises:
        SettingsError: for whatever is wrong with the command line.
    """
    config, loader = sweeper_config(line)
    template = str(OmegaConf.to_container(config.hydra.sweep, resolve=False)["dir"])  # type: ignore[call-overload,index]
    folder = Path(config.hydra.sweep.dir).absolute()
    kept = without_swept(line)
    for text in line.overrides:
        if text not in kept.overrides and name_of(text).startswith("sweep."):
            raise SettingsError(f"{text}: all jobs of a sweep share {name_of(text)}; give one value")
    fixed = compose_config(kept)
    settings = Settings(
        sweep=OmegaConf.to_object(fixed.sweep),  # type: ignore[arg-type]
        launch=OmegaConf.to_object(fixed.launch),  # type: ignore[arg-type]
        mode=fixed.mode,
        folder=folder,
        folder_is_new="${now:" in template,
    )
    return Sweeper(config, loader), settings
