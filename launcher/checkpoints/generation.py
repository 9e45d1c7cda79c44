"""What a generation holds, and which one a run continues from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.checkpoints import store
from launcher.checkpoints.plain import read_state, to_bytes
from launcher.checkpoints.state import WEIGHTS
from launcher.processes.errors import SettingsError, first_line

VERSION = 1
TRAINING = "training.pt"
STATES = "states.pt"
"""The states of task, loss and the like; only where one has any."""
FACTS = "run.json"
FILES = (WEIGHTS, TRAINING, FACTS)
"""Those that every generation has."""
BEST = "best"
"""What stands for the checkpoint of the best evaluation, after the folder of a run."""


@dataclass(frozen=True)
class Facts:
    """What is plain to read about a run that is kept: ``run.json``.

    Attributes:
        step: optimizer steps done.
        epoch: the epoch that the last step belongs to.
        rows: rows trained on, over all ranks.
        sampler: the state of the sampler.
        results: those of the evaluation after the last step; None where there was none.
        metrics: the last value of each.
        world_size: ranks that worked.
        optimizer: its ``_target_`` node.
        scheduler: its ``_target_`` node, with its length.
        identity: what the bits depend on.
        settings: of the run.
        best: the best evaluation so far: metric, value and step; None where nobody asks.
        wait: the best evaluation so far, and the number of those since; None where nobody waits for a better one.
    """

    step: int
    epoch: int
    rows: int
    sampler: Mapping[str, Any]
    results: Mapping[str, float] | None
    metrics: Mapping[str, float]
    world_size: int
    optimizer: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    best: Mapping[str, Any] | None = None
    wait: Mapping[str, Any] | None = None

    @property
    def is_best(self) -> bool:
        """Whether the evaluation after the last step is the best so far."""
        return self.best is not None and self.best["step"] == self.step

    def to_bytes(self) -> bytes:
        """JSON; numbers that are not finite become texts."""
        values = {**vars(self), "results": _as_json(self.results), "metrics": _as_json(self.metrics)}
        return json.dumps({"version": VERSION, **values}, indent=1).encode()

    @classmethod
    def from_bytes(cls, place: str, content: bytes) -> Facts:
        """The facts that ``to_bytes`` wrote.

        Raises:
            SettingsError: where something else is written there, or a newer version wrote it.
        """
        try:
            values = json.loads(content)
            version = values.pop("version")
            if version > VERSION:
                raise SettingsError(
                    f"{place}: {FACTS} has format version {version}, this version of evenshard reads up to {VERSION}"
                )
            return cls(**{**values, "results": _from_json(values["results"]), "metrics": _from_json(values["metrics"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{place}: {FACTS} cannot be read: {type(error).__name__}: {first_line(error)}"
            ) from error


def read_facts(place: str, folder: Path) -> Facts:
    """What is plain to read about the generation in ``folder``.

    Raises:
        SettingsError: where it is not what was written, or is no checkpoint.
    """
    return Facts.from_bytes(place, _read(place, folder, FACTS))


def named(place: str, path: Path) -> Path:
    """``path``, where ``best`` after a run folder stands for its checkpoint of the best evaluation.

    Raises:
        SettingsError: where none is kept there, or the system refuses to look.
    """
    try:
        path.is_dir()
    except OSError as error:
        raise SettingsError(f"{place} cannot be read: {error.strerror or error}") from error
    kept = [] if path.name != BEST or path.exists() else store.candidates(path.parent)
    for folder in kept:
        with suppress(SettingsError):  # damaged
            if read_facts(place, folder).is_best:
                return folder
    if kept:
        raise SettingsError(f"{place}: no best evaluation is kept in {path.parent}; checkpoint.keep_best keeps one")
    return path


def read_tensors(place: str, folder: Path) -> tuple[Any, Any]:
    """The weights, and the state of training, of the generation in ``folder``; no code in it is run.

    Raises:
        SettingsError: where they are not what was written, or are no state.
    """
    weights, training = (read_state(f"{place}: {name}", _read(place, folder, name)) for name in (WEIGHTS, TRAINING))
    return weights, training


def read_states(place: str, folder: Path) -> Mapping[str, Any]:
    """What task, loss and the like kept in the generation in ``folder``, by name; as ``read_tensors``."""
    try:
        if STATES not in store.names(folder):
            return {}
    except (store.DamagedError, store.NewerError) as error:
        raise SettingsError(f"{place}: {error}") from error
    states = read_state(f"{place}: {STATES}", _read(place, folder, STATES))
    if not isinstance(states, Mapping):
        raise SettingsError(f"{place}: {STATES} holds {type(states).__name__}, not states by name")
    return states


def _read(place: str, folder: Path, name: str) -> bytes:
    try:
        return store.read(folder, name)
    except (store.DamagedError, store.NewerError) as error:
        raise SettingsError(f"{place}: {error}") from error


@dataclass(frozen=True)
class Snapshots:
    """What a generation holds beside its facts, as it was at one moment.

    Attributes:
        weights: the state dict of the model.
        training: the states of optimizer, scheduler and what else is part of every run.
        states: those of task, loss and the like, where they have one.
    """

    weights: Mapping[str, Any]
    training: Mapping[str, Any]
    states: Mapping[str, Any]


def check_restorable(kept: Snapshots) -> None:
    """Refuse what could be written, and then not be read back.

    Raises:
        SettingsError: with the name of the part.
    """
    name = "model"
    try:
        for name, state in {name: kept.weights, **kept.training, **kept.states}.items():  # noqa: B020 - it is told
            read_state(name, to_bytes(state))
    except Exception as error:  # tensors of a user's own kind fail in ways of their own
        raise SettingsError(
            f"{name}: a checkpoint could not be restored: its state_dict() cannot be read back without running code; "
            "let it give tensors of torch, numbers, texts, lists and mappings"
        ) from error


def files_of(facts: Facts, kept: Snapshots) -> dict[str, bytes]:
    """The files of a generation."""
    states = {STATES: to_bytes(kept.states)} if kept.states else {}
    return {WEIGHTS: to_bytes(kept.weights), TRAINING: to_bytes(kept.training), **states, FACTS: facts.to_bytes()}


@dataclass(frozen=True)
class Choice:
    """Where a run continues.

    Attributes:
        folder: of the newest whole generation; None where none was ever kept.
        passed_over: what is wrong with each newer one.
    """

    folder: Path | None
    passed_over: list[str]


def choose(place: str, path: Path) -> Choice:
    """The newest whole generation of ``path``: a run folder, its ``checkpoints/``, or one generation.

    Raises:
        SettingsError: where there are generations and none is whole, with what is wrong with each; nothing is deleted.
    """
    problems: list[str] = []
    try:
        for folder in store.candidates(path):
            try:
                store.check_whole(folder, FILES)
            except store.DamagedError as error:  # noqa: PERF203 - few folders
                problems.append(str(error))
            else:
                return Choice(folder, problems)
    except (store.NewerError, OSError) as error:
        raise SettingsError(f"{place}: {error}") from error
    if problems:
        raise SettingsError(
            f"{place}: no whole checkpoint: {'; '.join(problems)}; nothing was deleted: to begin anew give another "
            "hydra.run.dir"
        )
    return Choice(None, [])


def _as_json(values: Mapping[str, float] | None) -> dict[str, float | str] | None:
    return None if values is None else {name: v if math.isfinite(v) else str(v) for name, v in values.items()}


def _from_json(values: Mapping[str, float | str] | None) -> dict[str, float] | None:
    return None if values is None else {name: float(v) if isinstance(v, str) else v for name, v in values.items()}
