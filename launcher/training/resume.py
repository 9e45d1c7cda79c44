"""Continuing a run from a checkpoint, on any number of ranks."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from launcher.checkpoints import identity, settings
from launcher.checkpoints.generation import Choice, Facts, choose, named, read_facts, read_states, read_tensors
from launcher.checkpoints.state import put_weights
from launcher.checkpoints.stateful import put_states
from launcher.checkpoints.store import FOLDER
from launcher.configure.devices import in_config_words
from launcher.configure.parts import RUN_LENGTH, Parts
from launcher.configure.schema import RESUME_WORDS, RunConfig
from launcher.observe.observer import METRICS, Done
from launcher.observe.status import read_status
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError, first_line
from launcher.processes.group import settled_by_rank_zero
from launcher.training.best import Best
from launcher.training.patience import Wait
from launcher.training.progress import Progress, Window
from launcher.training.step import Stepper
from samplers import FixedGlobalBatchSampler
from samplers.words import counted

log = logging.getLogger(__name__)

OVER = ("finished", "stopped")
MISFITS = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run continues from.

    Attributes:
        place: the setting and folder that it comes from, for messages.
        folder: of the generation.
        facts: what is plain to read about it.
        told: whether the run folder says already that the run ended there.
        says: whether this rank tells the user.
    """

    place: str
    folder: Path
    facts: Facts
    told: bool
    says: bool

    def restore(
        self, parts: Parts, stepper: Stepper, sampler: FixedGlobalBatchSampler, about: Mapping[str, Any]
    ) -> Progress:
        """Put what was kept in its place; returns where the run stands.

        Args:
            parts: have the model, and what else keeps a state.
            stepper: has optimizer, scheduler and loss scaling.
            sampler: of this rank.
            about: the facts of this run that do not change while it goes.

        Raises:
            SettingsError: where something does not fit; nothing is passed over.
        """
        facts = self.facts
        _load_position(sampler, facts, self.place)
        weights, training = read_tensors(self.place, self.folder)
        put_weights(parts.model, weights, self.place)
        self._put_states(parts, about["settings"])
        try:
            _load_training(training, stepper, facts, about)
            window = Window.restored(**training["window"], device=stepper.compute.device)
        except MISFITS as error:
            raise SettingsError(
                f"{self.place}: its state does not fit {type(stepper.optimizer).__name__} and the scheduler here: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        if self.says and (changes := identity.changes(facts.identity, about["identity"])):
            log.info("note: other than before: %s: the same rows, but not the same bits", changes)
        if self.says and (stretch := stretched(facts.scheduler, about["scheduler"])):
            log.info("note: %s: from here on the learning rate is that of the new length", stretch)
        done = Done(facts.step, facts.epoch, facts.rows)
        best = Best(**facts.best) if facts.best else None
        wait = Wait.restored(facts.wait)
        rows = sampler.state_dict()["rows"]
        return Progress(done, sampler.epoch, rows, window, facts.results, facts.metrics, best, wait)

    def _put_states(self, parts: Parts, settings: Mapping[str, Any]) -> None:
        """Those of task, loss and the like; a loss with other settings holds to those, as the optimizer does."""
        changed = {"loss"} if self.facts.settings["loss"] != settings["loss"] else set()
        states = {n: state for n, state in read_states(self.place, self.folder).items() if n not in changed}
        put_states(self.place, states, {n: part for n, part in parts.stateful.items() if n not in changed})


def find(run: RunConfig, rank: Rank, store: dist.Store, run_dir: Path) -> Resumed | None:
    """The checkpoint that the run continues from, the same on every rank; None: it begins.

    Raises:
        SettingsError: on every rank, where no generation is whole, a path leads to none, or the run was another.
    """
    where = settled_by_rank_zero(store, rank, f"resume/{rank.attempt}", lambda: look(run.checkpoint.resume, run_dir))
    if where is None:
        if rank.rank == 0 and (run_dir / METRICS).exists():
            log.info("note: no checkpoint was kept here: the run begins anew")
        return None
    place, folder = where["place"], Path(where["folder"])
    facts, changes = compare(run, place, folder)
    if rank.rank == 0:
        log.info("resumed from     %s", where_it_stands(folder, facts))
        _say(run, changes)
    return Resumed(place, folder, facts, where["told"], says=rank.rank == 0)


def compare(run: RunConfig, place: str, folder: Path) -> tuple[Facts, settings.Changes]:
    """What is plain to read about a checkpoint, and the settings that are others than its.

    Raises:
        SettingsError: where it is of another run.
    """
    facts = read_facts(place, folder)
    changes = settings.differences(_settings_of(place, facts), run)
    settings.check_same_run(changes, place)
    return facts, changes


def where_it_stands(folder: Path, facts: Facts) -> str:
    """Where a checkpoint is, and how far its run was."""
    return f"{folder}: step {facts.step}, epoch {facts.epoch + 1}, {counted(facts.rows, 'row', ',')}"


def take_states(source: Path, run: RunConfig, parts: Parts) -> None:
    """Give task, loss and the like the states that were kept beside the weights of ``source``.

    Task and loss take theirs where they have the settings that they had; else they stay as they were built. That is
    said of a task, of which a state that is not there tells more.

    Raises:
        SettingsError: where a state does not fit.
    """
    place = f"checkpoint.load={source}"
    states = read_states(place, source) if source.is_dir() else {}
    there = read_facts(place, source).settings if states else {}
    same = {n: there.get(n) == getattr(run, n, None) for n in parts.stateful}
    taken = {n: part for n, part in parts.stateful.items() if n in states and (n == "buffers" or same[n])}
    put_states(place, {n: states[n] for n in taken}, taken)
    if "task" in parts.stateful and "task" not in taken:
        log.info("note: %s keeps no state of this task, which is evaluated as it was built", place)


def stretched(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What became of the length of a scheduler, from its nodes; nothing where it is the same, or the scheduler another.

    >>> stretched({"_target_": "torch.optim.lr_scheduler.OneCycleLR", "total_steps": 10},
    ...           {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "total_steps": 20})
    'the scheduler was made for 10 steps (scheduler.total_steps) and is now for 20'
    """
    sides = [(name, before[name], now[name]) for name in RUN_LENGTH if name in before and name in now]
    if before.get("_target_") != now.get("_target_"):
        return ""
    return "".join(
        f"the scheduler was made for {there} steps (scheduler.{name}) and is now for {here}"
        for name, there, here in sides
        if there != here
    )


def _say(run: RunConfig, changes: settings.Changes) -> None:
    if changes:
        log.info("note: resumed with other settings: %s", settings.in_words(changes))
    if run.checkpoint.load:
        log.info("note: checkpoint.load=%s is passed over: the run goes on with its own weights", run.checkpoint.load)


def look(resume: str, run_dir: Path) -> dict[str, Any] | None:
    """On rank 0: the checkpoint that ``checkpoint.resume`` means; one of the run's own comes before one of a path."""
    if resume == "never":
        return None
    root = run_dir / FOLDER
    place = f"checkpoint.resume={resume}"
    own = _newest(f"{place}: {root}", root)
    if own is not None:
        status = read_status(run_dir)
        told = status.state in OVER and own.name.endswith(f"_{status.step:08d}")
        return {"place": f"{place}: {own}", "folder": str(own), "told": told}
    if resume in RESUME_WORDS:
        return None
    path = named(place, Path(resume))
    if not path.is_dir():
        wrong = "is a file; checkpoint.load takes files of weights" if path.exists() else "there is no such folder"
        raise SettingsError(f"{place}: {wrong}")
    other = _newest(place, path)
    if other is None:
        raise SettingsError(f"{place}: nothing is kept there; give a run folder, its checkpoints/, or one of those")
    return {"place": place, "folder": str(other), "told": False}


def _newest(place: str, path: Path) -> Path | None:
    found: Choice = choose(place, path)
    for problem in found.passed_over:
        log.warning("a checkpoint is passed over for an older one: %s", problem)
    return found.folder


def _settings_of(place: str, facts: Facts) -> RunConfig:
    try:
        return RunConfig.from_json(json.dumps(facts.settings))
    except (TypeError, KeyError, AttributeError, SettingsError) as error:
        raise SettingsError(
            f"{place}: its settings are not those of this version of evenshard: {first_line(error)}"
        ) from error


def _load_position(sampler: FixedGlobalBatchSampler, facts: Facts, place: str) -> None:
    there = facts.sampler.get("n")
    if there != sampler.n:
        raise SettingsError(
            f"{place}: an epoch has {there} row{'' if there == 1 else 's'} there, {sampler.n} here: data.train or "
            "data.order give others; give those of that run, or begin a run with its weights by checkpoint.load"
        )
    try:
        sampler.load_state_dict(facts.sampler)
    except ValueError as error:
        raise SettingsError(f"{place}: {in_config_words(str(error))}") from error


def _load_training(state: Mapping[str, Any], stepper: Stepper, facts: Facts, about: Mapping[str, Any]) -> None:
    """Optimizer, scheduler and loss scaling.

    Where optimizer or scheduler have other settings, the new ones hold: the optimizer keeps its momenta alone, and the
    new scheduler is moved to where the old one was.
    """
    same = about["optimizer"] == facts.optimizer and about["scheduler"] == facts.scheduler
    _load_optimizer(stepper.optimizer, state["optimizer"], same)
    if stepper.compute.scaler.is_enabled() and state["scaler"]:
        stepper.compute.scaler.load_state_dict(state["scaler"])
    stepper.finite.load_state_dict(state["finite"])
    if stepper.scheduler is not None and same:
        stepper.scheduler.load_state_dict(state["scheduler"])
    elif stepper.scheduler is not None:
        _move(stepper.scheduler, state.get("scheduler", {}).get("last_epoch", facts.step))


def _load_optimizer(optimizer: Optimizer, state: Mapping[str, Any], same: bool) -> None:
    groups = state["param_groups"] if same else optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})


def _move(scheduler: LRScheduler, steps: int) -> None:
    """Step a new scheduler as often as an old one was stepped, or to its own end."""
    most = getattr(scheduler, "total_steps", steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the optimizer has stepped, in the run before
        for _ in range(min(steps, most)):
            scheduler.step()
