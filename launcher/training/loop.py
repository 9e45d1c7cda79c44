"""The loop: epochs of steps, with a word and an evaluation now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from launcher.observe.observer import Done, Observer
from launcher.training.step import Stepper, by_step
from launcher.training.stop import StopRule
from samplers import FixedGlobalBatchSampler


@dataclass(frozen=True)
class Limits:
    """Where a run pauses and ends.

    Attributes:
        epochs: whole passes.
        last_step: the step that ends the run.
        evaluate_every: epochs between evaluations; 0: at the end only.
        log_every: steps between lines of metrics.
        stop: the rule that ends the run early.
    """

    epochs: int
    last_step: int
    evaluate_every: int
    log_every: int
    stop: StopRule


@dataclass
class Window:
    """The training loss since the last line of metrics; it stays on the device until somebody asks."""

    losses: list[Tensor] = field(default_factory=list)
    rows: int = 0

    def add(self, loss: Tensor, rows: int) -> None:
        """Note a step: this rank's sum of losses, and the rows of the global batch."""
        self.losses.append(loss)
        self.rows += rows

    def close(self) -> float:
        """The mean loss over the rows of all ranks, and a new beginning; a collective."""
        total = torch.stack(self.losses).sum()
        if dist.is_initialized():
            dist.all_reduce(total)
        mean = float(total) / self.rows
        self.losses, self.rows = [], 0
        return mean


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset that wants to know, before its loader's workers start."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


@dataclass(frozen=True)
class Training:
    """A run that is ready to go.

    Attributes:
        stepper: takes the steps.
        sampler: deals the rows.
        loader: reads the rows that were dealt to this rank.
        evaluate: gives the metrics by name, a collective; None: nothing is evaluated.
        observer: is told what happens.
        limits: where to pause and to end.
    """

    stepper: Stepper
    sampler: FixedGlobalBatchSampler
    loader: DataLoader[Any]
    evaluate: Callable[[], dict[str, float]] | None
    observer: Observer
    limits: Limits

    def run(self) -> tuple[str, Done]:
        """Train to the end: ``finished``, or ``stopped`` by ``trainer.stop_when``, and how far that was."""
        window, done, state = Window(), Done(), "finished"
        for epoch in range(self.limits.epochs):
            self.sampler.set_epoch(epoch)
            tell_epoch(self.loader.dataset, epoch)
            self.stepper.begin(done.step)
            for micro_batches in by_step(self.loader, self.sampler):
                rate = self.stepper.learning_rate
                loss, rows = self.stepper.step(micro_batches)
                window.add(loss, rows)
                done = Done(done.step + 1, epoch, done.rows + rows)
                self.stepper.begin(done.step)
                self.observer.reached(done)
                if done.step % self.limits.log_every == 0:
                    self._tell(done, window, rate)
                if done.step == self.limits.last_step:
                    break
            if self._pauses(done, epoch):
                self._tell(done, window, rate)
                state = "stopped" if self._evaluation_stops(done) else "finished"
            if state == "stopped" or done.step == self.limits.last_step:
                break
        return state, done

    def _tell(self, done: Done, window: Window, rate: float) -> None:
        if window.rows:
            self.observer.trained(done, {"loss": window.close(), "lr": rate})

    def _pauses(self, done: Done, epoch: int) -> bool:
        """Whether this is the end of the run, or of an epoch after which an evaluation is due."""
        every = self.limits.evaluate_every
        return done.step == self.limits.last_step or (every > 0 and (epoch + 1) % every == 0)

    def _evaluation_stops(self, done: Done) -> bool:
        """Evaluate; whether the results fulfil the rule to stop."""
        if self.evaluate is None:
            return False
        results = self.evaluate()
        self.observer.evaluated(done, results)
        return self.limits.stop.holds(results)
