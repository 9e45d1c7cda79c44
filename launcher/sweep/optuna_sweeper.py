"""``hydra/sweeper=optuna``: a sweep that learns from the jobs that are over."""

from __future__ import annotations

import logging
import sys
from functools import cached_property
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher.files import replace_file
from launcher.processes.errors import SettingsError
from launcher.sweep.adaptive import Goal, OptunaSource
from launcher.sweep.jobs import Record
from launcher.sweep.plugin import MODULE, Listed
from launcher.sweep.search import Search
from launcher.sweep.space import Space, read_space
from launcher.sweep.study import SAMPLER, Kept, Place, Sampling, build_pruner

log = logging.getLogger(__name__)
RESULTS = "optimization_results.yaml"


class OptunaSweeper(Sweeper):
    """Asks an Optuna study for the next job, and tells it what became of those that are over.

    Args:
        settings: as ``Search`` has them.
    """

    # Hydra makes plugins of this package only, by the dotted name of their class.
    __module__ = MODULE

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None
        self.launcher: Any = None

    @cached_property
    def search(self) -> Search:
        """The settings, checked here: Hydra would put an error of the constructor into words of its own."""
        return Search.of(self._settings)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra before ``sweep``."""
        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Record]:
        """Run the search, or show how it begins where the launcher only plans.

        Args:
            arguments: overrides of the command line, but for those of Hydra's own settings.

        Returns:
            What became of the jobs.

        Raises:
            SettingsError: before anything is started or written, where the search cannot be.
        """
        goal, pruner = self._goal(arguments), build_pruner(self.search.pruner)
        if self.launcher.plans:
            return self._plan(goal)
        place = Place(self.search.storage, self.search.study_name, self.launcher.sweep_dir)
        kept = place.open(goal.direction, goal.about(), goal.sampling.sampler(0), pruner)
        try:
            source = OptunaSource(kept, goal, self.launcher.compose)
            records: list[Record] = self.launcher.run(source)
            _leave_best(kept, goal)
        finally:
            kept.close()
        return records

    def _plan(self, goal: Goal) -> list[Record]:
        """Say what the search is, and show the first job; the others depend on its end."""
        sampler = str(self.search.sampler["_target_"]).rpartition(".")[2]
        end = f"to {goal.direction} {goal.metric.lstrip('-')}"
        lines = [
            f"up to {goal.n_trials} jobs, drawn by {sampler} as the sweep goes, {end}",
            *(f"  {name}: {values}" for name, values in goal.space.about().items()),
            "the first of them:",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        first = OptunaSource(Kept.in_memory(goal.direction), goal, self.launcher.compose).ask()
        records: list[Record] = self.launcher.run(Listed([first] if first else []))
        return records

    def _goal(self, arguments: list[str]) -> Goal:
        direction = self.search.direction_of(self.launcher.metric)
        loader = self.hydra_context.config_loader if self.hydra_context else None
        space = read_space(arguments, self.search.params, loader)
        sampling = Sampling(self.search.sampler, self.search.seed)
        n_trials = _most_trials(self.search.n_trials, space) if sampling.is_exhaustive else self.search.n_trials
        return Goal(space, sampling, self.launcher.metric, direction, n_trials, self.launcher.sweep_dir)


def _leave_best(kept: Kept, goal: Goal) -> None:
    """Leave the best trial in a file, as the sweeper for Optuna 2 did."""
    best = kept.best()
    if best is not None:
        searched = list(goal.space.searched(best))
        params = {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(searched)}
        content = {"name": "optuna", "best_job": best.number, "best_params": params, "best_value": best.value}
        try:
            replace_file(goal.sweep_dir / RESULTS, yaml.safe_dump(content, sort_keys=False))
        except OSError as error:
            log.warning("%s cannot be written to %s: %s", RESULTS, goal.sweep_dir, error.strerror or error)


def _most_trials(n_trials: int, space: Space) -> int:
    """As many as there are points, where each is drawn once."""
    if space.size is None:
        endless = next(parameter for parameter in space.parameters if parameter.size is None)
        raise SettingsError(
            f"{SAMPLER}: each combination cannot be tried, since {endless.name} is any number from {endless}; write "
            "range(...) or choice(...), or set another hydra/sweeper/sampler"
        )
    return min(n_trials, space.size)
