"""The settings of ``hydra/sweeper=optuna``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from omegaconf import OmegaConf

from launcher.processes.errors import SettingsError, closest, one_of

DIRECTIONS = ("maximize", "minimize")
ELSEWHERE = {
    "n_jobs": "set sweep.parallel",
    "max_failure_rate": "set sweep.on_failure",
    "search_space": "write it as params: {optimizer.lr: interval(0.01,0.1)}",
    "custom_search_space": "write the space as params: {optimizer.lr: interval(0.01,0.1)}",
}
"""Settings of the sweeper that was published for Optuna 2, and what takes their place."""


@dataclass
class Search:
    """The settings of ``hydra.sweeper``.

    Attributes:
        direction: maximize or minimize; None: as the metric says it.
        n_trials: of the whole search.
        sampler: a node with a ``_target_``.
        pruner: likewise.
        storage: a URL; None: a journal in the sweep's folder.
        study_name: None: one for each sweep's folder.
        params: setting -> values in the grammar of overrides.
        seed: of the sampler.
    """

    direction: str | None = None
    n_trials: int = 20
    sampler: dict[str, Any] = field(default_factory=lambda: {"_target_": "optuna.samplers.TPESampler"})
    pruner: dict[str, Any] = field(default_factory=lambda: {"_target_": "optuna.pruners.NopPruner"})
    storage: str | None = None
    study_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Search:
        """Those that a config gives.

        Raises:
            SettingsError: for one that there is not, or whose value cannot be.
        """
        known = [member.name for member in fields(cls)]
        for name in settings:
            if name not in known:
                _refuse_name(name, known)
        plain: dict[str, Any] = {
            name: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for name, v in settings.items()
        }
        return cls(**plain)

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        if self.direction is not None:
            one_of("hydra.sweeper.direction", self.direction, DIRECTIONS)
        if type(self.n_trials) is not int or self.n_trials < 1:
            raise SettingsError(f"hydra.sweeper.n_trials={self.n_trials} is no number of trials: the least is 1")
        if type(self.seed) is not int:
            raise SettingsError(f"hydra.sweeper.seed={self.seed} is no whole number")
        if self.storage is not None and "://" not in str(self.storage):
            raise SettingsError(
                f"hydra.sweeper.storage={self.storage} is no URL: write sqlite:///FILE, or null for a file in the "
                "sweep's folder"
            )
        for name in ("sampler", "pruner"):
            if not isinstance(getattr(self, name), dict):
                raise SettingsError(f"hydra.sweeper.{name}={getattr(self, name)} is no node with a _target_")

    def direction_of(self, metric: str | None) -> str:
        """Whether the metric is maximized or minimized.

        Raises:
            SettingsError: where there is no metric, or it says the opposite of ``direction``.
        """
        if not metric:
            raise SettingsError(
                "hydra/sweeper=optuna needs a metric: sweep.metric=accuracy for the highest accuracy, or "
                "sweep.metric=-loss for the lowest loss"
            )
        found = "minimize" if metric.startswith("-") else "maximize"
        if self.direction not in (None, found):
            other = metric.lstrip("-") if found == "minimize" else f"-{metric}"
            raise SettingsError(
                f"hydra.sweeper.direction={self.direction} contradicts sweep.metric={metric}, which says {found}: "
                f"leave the direction out, or set sweep.metric={other}"
            )
        return found


def _refuse_name(name: str, known: list[str]) -> NoReturn:
    hint = f": {ELSEWHERE[name]}" if name in ELSEWHERE else closest(name, known) or f"; it has {', '.join(known)}"
    raise SettingsError(f"hydra.sweeper.{name} is no setting of hydra/sweeper=optuna{hint}")
