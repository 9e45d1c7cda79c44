"""What a rank does to keep a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher.checkpoints import store
from launcher.checkpoints.generation import Facts, Snapshots, check_restorable, files_of
from launcher.checkpoints.identity import identity_of
from launcher.checkpoints.plain import Copies, snapshot
from launcher.checkpoints.state import snapshot_of
from launcher.checkpoints.stateful import Stateful, snapshot_states
from launcher.checkpoints.writer import Writer
from launcher.configure.parts import scheduler_node
from launcher.configure.schema import RunConfig
from launcher.observe.observer import Observer
from launcher.processes.errors import SettingsError
from launcher.training.cadence import Cadence
from launcher.training.compute import Compute
from launcher.training.finite import check_weights
from launcher.training.interval import Interval
from launcher.training.progress import Progress
from launcher.training.step import Stepper
from samplers import FixedGlobalBatchSampler

log = logging.getLogger(__name__)

LAST_WORDS_S = 10.0
"""Seconds that a run which fails waits for the checkpoint that is being written."""


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint.

    Attributes:
        step: after which it was taken.
        waited_s: seconds for which training waited for it.
        write_s: seconds that writing it took.
        error: why it was not kept; None: it was.
    """

    step: int
    waited_s: float
    write_s: float
    error: str | None = None


@dataclass(frozen=True)
class Keeper:
    """Keeps checkpoints of a run.

    A checkpoint is a snapshot in memory, which is written while training goes on. One is written at a time: who asks
    for the next meanwhile waits.

    Attributes:
        run_dir: the run folder.
        generations: how many stay.
        cadence: says which of them make way for the next.
        model: not wrapped.
        stepper: has optimizer, scheduler and loss scaling.
        stateful: task, loss and the like, where they have a state.
        sampler: knows the position.
        observer: knows the metrics.
        about: the facts of the run that do not change while it goes.
        writer: of the checkpoints; None on ranks that write none.
        on_error: stop or warn, where one cannot be written; at the end of a run it is an error either way.
        interval: the time between two, which may depend on how long saving takes.
    """

    run_dir: Path
    generations: int
    cadence: Cadence
    model: nn.Module
    stepper: Stepper
    stateful: Mapping[str, Stateful]
    sampler: FixedGlobalBatchSampler
    observer: Observer
    about: Mapping[str, Any]
    writer: Writer[Outcome] | None
    on_error: str
    interval: Interval

    @property
    def root(self) -> Path:
        """The folder of the generations."""
        return self.run_dir / store.FOLDER

    def check(self) -> None:
        """Refuse to begin where nothing could be kept.

        Raises:
            SettingsError: where a state holds an object or could not be restored, the folder cannot be written, or the
                disk is too full.
        """
        sizes: list[int] = []

        def measure(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            common = type(tensor) in (Tensor, nn.Parameter)
            return torch.empty(0, dtype=tensor.dtype) if common else tensor.detach()

        check_restorable(self._snapshots(measure))
        if self.writer is None:
            return
        try:
            store.check_writable(self.root, sum(sizes))
        except OSError as error:
            raise SettingsError(
                f"hydra.run.dir={self.run_dir}: no checkpoint can be written to {self.root}: {_reason(error)}"
            ) from error

    def keep(self, now: Progress) -> None:
        """Keep the run as it stands after a step; a collective.

        Raises:
            SettingsError: where the one before could not be written and ``on_error`` is stop.
            NonFiniteError: where the weights are not finite.
        """
        check_weights(self.model, self._newest)
        self.stepper.reduction.combine_buffers()
        losses = now.window.of_all_ranks()
        if self.writer is None:
            return
        self.settle()
        window = {"losses": losses, "rows": now.window.rows}
        began = time.perf_counter()
        kept = self._snapshots(Copies().of, window=window)
        self.writer.start(partial(self._write, self._facts(now), kept, time.perf_counter() - began))

    def look(self) -> None:
        """Tell what became of the last checkpoint, if that is known by now.

        Raises:
            SettingsError: as ``keep``.
        """
        if self.writer is not None and not self.writer.is_busy:
            self.settle()

    def settle(self, last: bool = False, patience_s: float | None = None) -> None:
        """Wait for the checkpoint that is being written, and tell what became of it.

        Args:
            last: whether the run ends with it, so that nothing makes up for it.
            patience_s: seconds to wait at most; None: as long as it takes.

        Raises:
            SettingsError: where it could not be written, and ``on_error`` is stop or it is the last.
        """
        outcome = self.writer.result(patience_s) if self.writer else None
        if outcome is None:
            return
        self.observer.kept(outcome.step, outcome.error)
        if outcome.error is None:
            self.interval.saved(outcome.waited_s, outcome.write_s)
            return
        whole = [folder.name for folder in store.generations(self.root)[:1]]
        lost = (
            f"{store.folder_of(self.root, outcome.step)} was not kept: {outcome.error}; "
            f"{f'the newest that was is {whole[0]}' if whole else 'none was kept before'}"
        )
        if last or self.on_error == "stop":
            raise SettingsError(f"{lost}; make room, and give the same hydra.run.dir again to go on")
        log.warning("%s; training goes on, as checkpoint.on_error=warn says", lost)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Checkpoints are kept inside this block; when it is left, the last one is on the disk.

        A run that fails inside waits some seconds for the one that is being written; one that is told to end at once
        does not.

        Raises:
            SettingsError: where the last one could not be written.
        """
        try:
            yield
        except Exception:
            self._settle_in_haste()
            raise
        self.settle(last=True)

    def _settle_in_haste(self) -> None:
        try:
            self.settle(patience_s=LAST_WORDS_S)
        except Exception as error:  # noqa: BLE001 - the run ends by another one
            log.warning("%s", error)

    def _newest(self) -> str | None:
        """The checkpoint that was kept last, once the one that is being written is."""
        self.settle()
        with suppress(OSError):
            return next((folder.name for folder in store.generations(self.root)), None)
        return None

    def _snapshots(self, copy: Callable[[Tensor], Tensor], **more: Any) -> Snapshots:
        """All that is kept, as it is now; ``more`` belongs to the state of training.

        Raises:
            SettingsError: where a state holds something that a checkpoint cannot keep.
        """
        training = {**training_state(self.stepper, copy), **more}
        return Snapshots(snapshot_of(self.model, copy), training, snapshot_states(self.stateful, copy))

    def _write(self, facts: Facts, kept: Snapshots, copied_s: float) -> Outcome:
        """What the writer does with what it took so many seconds to copy."""
        began = time.perf_counter()
        try:
            self.observer.flush()
            store.save(self.root, facts.step, files_of(facts, kept))
            error = None
        except OSError as problem:
            error = _reason(problem)
        else:
            self._prune(facts)
        write_s = time.perf_counter() - began
        beside = self.writer is not None and self.writer.background
        return Outcome(facts.step, copied_s if beside else copied_s + write_s, write_s, error)

    def _prune(self, facts: Facts) -> None:
        try:
            best = facts.best["step"] if facts.best else None
            store.prune(self.root, facts.step, self.generations, best, self.cadence.makes_way)
        except OSError as error:
            log.warning("old checkpoints cannot be removed: %s", _reason(error))

    def _facts(self, now: Progress) -> Facts:
        return Facts(
            step=now.done.step,
            epoch=now.done.epoch,
            rows=now.done.rows,
            sampler=self.sampler.state_dict(now.epoch_rows),
            results=now.results,
            metrics=dict(self.observer.metrics),
            best=asdict(now.best) if now.best else None,
            wait=asdict(now.wait) if now.wait else None,
            **self.about,
        )


def facts_of(run: RunConfig, compute: Compute, threads: int, ranks: int, steps: int) -> dict[str, Any]:
    """The facts of a run that do not change while it goes.

    Args:
        run: its settings.
        compute: how each rank computes.
        threads: of each rank.
        ranks: that work.
        steps: of the whole run.
    """
    return {
        "world_size": ranks,
        "optimizer": run.optimizer,
        "scheduler": scheduler_node(run, steps),
        "identity": asdict(identity_of(run, compute.device, compute.channels_last, threads, ranks)),
        "settings": asdict(run),
    }


def training_state(stepper: Stepper, copy: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The state of optimizer, scheduler, loss scaling and the count of steps left out, as it is now.

    Raises:
        SettingsError: where one of them holds something that a checkpoint cannot keep.
    """
    parts = {
        "optimizer": stepper.optimizer,
        "scheduler": stepper.scheduler,
        "scaler": stepper.compute.scaler,
        "finite": stepper.finite,
    }
    return {name: snapshot(name, part.state_dict(), copy) for name, part in parts.items() if part is not None}


def _reason(error: OSError) -> str:
    """Why the system refused, and where."""
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"
