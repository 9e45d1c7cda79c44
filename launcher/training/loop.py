"""The loop: epochs of steps, with a word, an evaluation and a checkpoint now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from launcher.observe.observer import Done, Observer
from launcher.training.keep import Keeper
from launcher.training.progress import Progress
from launcher.training.step import Stepper, by_step
from launcher.training.stop import StopRule
from samplers import FixedGlobalBatchSampler


@dataclass(frozen=True)
class Limits:
    """Where a run pauses and ends.

    Attributes:
        epochs: whole passes.
        max_steps: steps after which the run ends, if that comes first; None: no limit.
        evaluate_every: epochs between evaluations; 0: at the end only.
        log_every: steps between lines of metrics.
        keep_every: steps between checkpoints; None: at the end only.
        stop: the rule that ends the run early.
    """

    epochs: int
    max_steps: int | None
    evaluate_every: int
    log_every: int
    keep_every: int | None
    stop: StopRule


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset that wants to know, before its loader's workers start."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


def steps_of(sampler: FixedGlobalBatchSampler) -> int:
    """The steps of the pass that begins."""
    return sampler.share(len(sampler) - 1).step - sampler.share(0).step + 1


@dataclass(frozen=True)
class Training:
    """A run that is ready to go.

    Attributes:
        stepper: takes the steps.
        sampler: deals the rows.
        loader: reads the rows that were dealt to this rank.
        evaluate: gives the metrics by name, a collective; None: nothing is evaluated.
        keeper: keeps checkpoints of where the run stands.
        observer: is told what happens.
        limits: where to pause and to end.
        progress: where the run stands.
    """

    stepper: Stepper
    sampler: FixedGlobalBatchSampler
    loader: DataLoader[Any]
    evaluate: Callable[[], dict[str, float]] | None
    keeper: Keeper
    observer: Observer
    limits: Limits
    progress: Progress

    def run(self) -> tuple[str, Done]:
        """Train to the end: ``finished``, or ``stopped`` by ``trainer.stop_when``, and how far that was."""
        now = self.progress
        if self.is_over:
            self._conclude()
        while not self.is_over:
            self.sampler.set_epoch(now.epoch)
            tell_epoch(self.loader.dataset, now.epoch)
            now.epoch_rows = self.sampler.state_dict()["rows"]
            self.stepper.begin(now.done.step)
            left = reversed(range(steps_of(self.sampler)))
            for micro_batches, steps_left in zip(by_step(self.loader, self.sampler), left, strict=True):
                rate = self.stepper.learning_rate
                loss, rows = self.stepper.step(micro_batches)
                now.add(loss, rows, steps_left)
                self.observer.reached(now.done)
                self._pause(rate, steps_left)
                if self.is_over:
                    break
                self.stepper.begin(now.done.step)
        return "stopped" if self._stops else "finished", now.done

    @property
    def is_over(self) -> bool:
        """Whether no step is left to do."""
        return self._reached_the_end or self._stops

    @property
    def _reached_the_end(self) -> bool:
        most = self.limits.max_steps
        return self.progress.epoch >= self.limits.epochs or (most is not None and self.progress.done.step >= most)

    @property
    def _stops(self) -> bool:
        """Whether the last step was followed by an evaluation that fulfils the rule to stop."""
        return self.progress.results is not None and self.limits.stop.holds(self.progress.results)

    def _pause(self, rate: float, steps_left: int) -> None:
        """After a step: tell, evaluate and keep what is due; a checkpoint comes last, so that it holds the rest."""
        step = self.progress.done.step
        evaluates = self._reached_the_end or (steps_left == 0 and self._evaluates_after(self.progress.done.epoch))
        if evaluates or step % self.limits.log_every == 0:
            self._tell(rate)
        if evaluates:
            self._evaluate()
        if self.is_over or (self.limits.keep_every and step % self.limits.keep_every == 0):
            self.keeper.keep(self.progress)

    def _conclude(self) -> None:
        """What is due at the end, where a run is continued that stood there already and did not know it for the end."""
        self._tell(self.stepper.learning_rate)
        if self.progress.results is None:
            self._evaluate()

    def _tell(self, rate: float) -> None:
        window = self.progress.window
        if window.rows:
            self.observer.trained(self.progress.done, {"loss": window.close(), "lr": rate})

    def _evaluates_after(self, epoch: int) -> bool:
        every = self.limits.evaluate_every
        return every > 0 and (epoch + 1) % every == 0

    def _evaluate(self) -> None:
        if self.evaluate is not None:
            self.progress.results = self.evaluate()
            self.observer.evaluated(self.progress.done, self.progress.results)
