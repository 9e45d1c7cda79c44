"""The study of an adaptive sweep: where its trials are kept, and what draws and prunes them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.configure.build import accepts, build
from launcher.configure.schema import Node
from launcher.processes.errors import SettingsError
from launcher.seeds import stream_seed
from launcher.sweep.journal import JOURNAL, journal, load_optuna

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

STUDY_NAME = "sweep"
SAMPLER = "hydra.sweeper.sampler"
PRUNER = "hydra.sweeper.pruner"
REFUSED = {
    "CmaEsSampler": "keeps its state as a pickle, which is code, in the study; set hydra/sweeper/sampler=tpe",
    "GridSampler": "has a search space of its own; set hydra/sweeper/sampler=grid",
}
ONE_SEQUENCE = "QMCSampler"
"""Draws all trials from one sequence, which its seed stands for."""


@dataclass(frozen=True)
class Sampling:
    """Builds the sampler of each trial, so that what is drawn does not depend on interruptions.

    Attributes:
        node: ``hydra.sweeper.sampler``.
        seed: ``hydra.sweeper.seed``, for a sampler that has none of its own.
    """

    node: Node
    seed: int

    def sampler(self, number: int) -> BaseSampler:
        """That of trial ``number``; its random numbers are those of the seed and the number alone.

        Raises:
            SettingsError: where the node does not describe a sampler, or one that is refused.
        """
        optuna = load_optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = build(SAMPLER, self._for_trial(self.node, number))
        _must_be(SAMPLER, self.node, sampler, "BaseSampler")
        return sampler  # type: ignore[no-any-return]

    @property
    def is_exhaustive(self) -> bool:
        """Whether it draws no point twice before all were drawn."""
        return isinstance(self.sampler(0), load_optuna().samplers.BruteForceSampler)

    def _for_trial(self, node: Node, number: int) -> Node:
        """The node with a seed for this trial in it, and in those inside it."""
        name = str(node.get("_target_", "")).rpartition(".")[2]
        if name in REFUSED:
            raise SettingsError(f"{SAMPLER}: {name} {REFUSED[name]}")
        made: Node = {k: self._for_trial(v, number) if isinstance(v, dict) else v for k, v in node.items()}
        if not name or not accepts(SAMPLER, node, "seed"):
            return made
        seed = self.seed if made.get("seed") is None else made["seed"]
        drawn = stream_seed(seed, "trial", number) % 2**32
        if name == ONE_SEQUENCE:
            independent = {"_target_": "optuna.samplers.RandomSampler", "seed": drawn}
            return {"independent_sampler": independent, **made, "seed": seed}
        return {**made, "seed": drawn}


def build_pruner(node: Node) -> BasePruner:
    """The pruner that ``hydra.sweeper.pruner`` describes.

    Raises:
        SettingsError: where it does not describe one.
    """
    load_optuna()
    pruner = build(PRUNER, node)
    _must_be(PRUNER, node, pruner, "BasePruner")
    return pruner  # type: ignore[no-any-return]


def _must_be(option: str, node: Node, built: Any, base: str) -> None:
    optuna = load_optuna()
    if not isinstance(built, getattr(optuna.samplers, base, None) or getattr(optuna.pruners, base)):
        raise SettingsError(f"{option}: {node['_target_']} is no optuna.{option.rpartition('.')[2]}s.{base}")


@dataclass(frozen=True)
class Kept:
    """A study, and where it is kept.

    Attributes:
        study: with the trials so far.
        storage: of the study.
    """

    study: Study
    storage: BaseStorage

    @classmethod
    def in_memory(cls, direction: str) -> Kept:
        """A new study that nothing is left of."""
        optuna = load_optuna()
        storage = optuna.storages.InMemoryStorage()
        return cls(optuna.create_study(storage=storage, direction=direction), storage)

    @property
    def has_pruner(self) -> bool:
        """Whether a trial may be pruned."""
        return not isinstance(self.study.pruner, load_optuna().pruners.NopPruner)

    def running(self) -> list[tuple[Trial, int]]:
        """The trials that are given out and not over, by number, each with the step of its last evaluation or -1."""
        running = load_optuna().trial.TrialState.RUNNING
        found = sorted(self.study.get_trials(deepcopy=False, states=(running,)), key=lambda trial: trial.number)
        return [(self._trial(trial.number), -1 if trial.last_step is None else trial.last_step) for trial in found]

    def drawn(self) -> int:
        """How many trials were given out so far."""
        waiting = load_optuna().trial.TrialState.WAITING  # those that somebody put in the queue
        return sum(trial.state != waiting for trial in self.study.get_trials(deepcopy=False))

    def best(self) -> FrozenTrial | None:
        """The best trial that came to its end; None: none did."""
        try:
            return self.study.best_trial
        except ValueError:
            return None

    def close(self) -> None:
        """Let the storage go."""
        self.storage.remove_session()

    def _trial(self, number: int) -> Trial:
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        return load_optuna().trial.Trial(self.study, trial_id)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Place:
    """Where a study is kept.

    Attributes:
        storage: ``hydra.sweeper.storage``; None: a journal in the sweep's folder.
        study_name: ``hydra.sweeper.study_name``.
        sweep_dir: the sweep's folder.
    """

    storage: str | None
    study_name: str | None
    sweep_dir: Path

    def open(self, direction: str, about: Mapping[str, str], sampler: BaseSampler, pruner: BasePruner) -> Kept:
        """The study of this name, made where there is none.

        Args:
            direction: maximize or minimize.
            about: what is searched, by which a study is known again.
            sampler: draws.
            pruner: prunes.

        Raises:
            SettingsError: where it cannot be read or written, or is the study of another search.
        """
        optuna = load_optuna()
        name = self.study_name or (str(self.sweep_dir) if self.storage else STUDY_NAME)
        try:
            storage = optuna.storages.RDBStorage(self.storage) if self.storage else journal(self.sweep_dir)
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction=direction,
                load_if_exists=True,
                sampler=sampler,
                pruner=pruner,
            )
        except Exception as error:  # of the storage, which may be any library of databases
            raise SettingsError(
                f"{self}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            ) from error
        self._compare(study, dict(about))
        return Kept(study, storage)

    def __str__(self) -> str:
        if self.storage:
            shown = re.sub(r"//[^@/]*@", "//...@", self.storage)  # a password is nobody's business
            return f"hydra.sweeper.storage={shown} cannot be used"
        return f"hydra.sweep.dir={self.sweep_dir}: {JOURNAL} there cannot be used"

    def _compare(self, study: Study, about: dict[str, str]) -> None:
        before = study.user_attrs.get("about")
        if before is None and not study.get_trials(deepcopy=False):
            study.set_user_attr("about", about)
        elif before != about:
            raise SettingsError(
                f"the study {study.study_name} is one of another search: there {_in_words(before)}, here "
                f"{_in_words(about)}; give another hydra.sweeper.study_name, or another hydra.sweep.dir"
            )


def _in_words(about: Mapping[str, str] | None) -> str:
    return json.dumps(about, ensure_ascii=False) if about else "not by this launcher"
