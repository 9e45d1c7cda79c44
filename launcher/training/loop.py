"""The loop: epochs of steps, with a word, an evaluation and a checkpoint now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import DataLoader

from launcher.observe.clock import waited_for
from launcher.observe.meter import Meter
from launcher.observe.observer import Done, Observer
from launcher.observe.profile import Profiler
from launcher.processes.signals import Wish
from launcher.training.agree import Agreement, Decision
from launcher.training.best import BestRule
from launcher.training.evaluate import GivenUpError
from launcher.training.keep import Keeper
from launcher.training.patience import Patience
from launcher.training.progress import Progress
from launcher.training.step import Stepper, by_step
from launcher.training.stop import StopRule
from samplers import FixedGlobalBatchSampler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Where a run pauses and ends.

    Attributes:
        epochs: whole passes.
        max_steps: steps after which the run ends, if that comes first; None: no limit.
        evaluate_every: epochs between evaluations; 0: at the end only.
        log_every: steps between lines of metrics.
        stop: the rule that ends the run early.
        patience: ends the run when nothing better comes.
        best: the rule by which an evaluation is the best so far, which is kept.
    """

    epochs: int
    max_steps: int | None
    evaluate_every: int
    log_every: int
    stop: StopRule
    patience: Patience
    best: BestRule


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset that wants to know, before its loader's workers start."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


def steps_of(sampler: FixedGlobalBatchSampler) -> int:
    """The steps of the pass that begins."""
    return sampler.share(len(sampler) - 1).step - sampler.share(0).step + 1


@dataclass(frozen=True)
class Ending:
    """How training ended.

    Attributes:
        state: finished, stopped (by ``trainer.stop_when`` or ``trainer.patience``) or preempted.
        done: how far that was.
        wish: by which it was preempted.
        measured: since the last line of metrics.
    """

    state: str
    done: Done
    wish: Wish | None = None
    measured: Mapping[str, float] = field(default_factory=dict)


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
        agreement: of the ranks, to stop before the end.
        limits: where to pause and to end.
        progress: where the run stands.
        meter: measures where the time goes.
        profiler: records what is computed.
    """

    stepper: Stepper
    sampler: FixedGlobalBatchSampler
    loader: DataLoader[Any]
    evaluate: Callable[[], dict[str, float]] | None
    keeper: Keeper
    observer: Observer
    agreement: Agreement
    limits: Limits
    progress: Progress
    meter: Meter = field(default_factory=Meter)
    profiler: Profiler = field(default_factory=Profiler)

    def run(self) -> Ending:
        """Train to the end, or until the ranks agree to stop; then everything is kept."""
        self.meter.begin()
        now, asked, clock = self.progress, self._make_up(), self.meter.clock
        while not (self.is_over or asked.stop):
            self.sampler.set_epoch(now.epoch)
            tell_epoch(self.loader.dataset, now.epoch)
            now.epoch_rows = self.sampler.state_dict()["rows"]
            self.stepper.begin(now.done.step)
            left = reversed(range(steps_of(self.sampler)))
            for micro_batches, steps_left in zip(
                by_step(waited_for(self.loader, clock), self.sampler), left, strict=True
            ):
                rate = self.stepper.learning_rate
                now.add(self.stepper.step(micro_batches), steps_left)
                self.observer.reached(now.done)
                self.profiler.step()
                asked = self._pause(rate, self._agree(now.done.step))
                if self.is_over or asked.stop:
                    break
                self.stepper.begin(now.done.step)
        return replace(self._ending(asked), measured=self.meter.close(0))

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
        """Whether the last step was followed by an evaluation that fulfils the rule to stop, or ends the patience."""
        now, limits = self.progress, self.limits
        return now.results is not None and (limits.stop.holds(now.results) or limits.patience.is_over(now.wait))

    def _agree(self, step: int) -> Decision:
        with self.meter.clock.part("communication"):
            return self.agreement.after(step)

    def _pause(self, rate: float, asked: Decision) -> Decision:
        """After a step: tell, evaluate and keep what is due; a checkpoint comes last, so that it holds the rest.

        Who is asked to stop, before an evaluation or in it, has no time for it; the run makes up for it when it is
        continued.
        """
        self.keeper.look()
        step = self.progress.done.step
        if self._evaluates_here or step % self.limits.log_every == 0:
            self._tell(rate)
        if self._owes_evaluation and not asked.stop:
            asked = self._evaluate(asked)
        if self.is_over or asked.stop or asked.keep or self.keeper.cadence.is_due(step) or self._is_best:
            with self.meter.clock.part("checkpoint"):
                self.keeper.keep(self.progress)
        return asked

    @property
    def _is_best(self) -> bool:
        """Whether the evaluation after the last step was the best so far."""
        best = self.progress.best
        return best is not None and best.step == self.progress.done.step

    def _make_up(self) -> Decision:
        """What is due where a run is continued that stopped before that, or did not know it stood at its end."""
        if self.is_over:
            self._tell(self.stepper.learning_rate)
        if not self.progress.done.step or not self._owes_evaluation:
            return Decision()
        asked = self._evaluate(Decision())
        if self.progress.results is not None:  # it was not given up
            self.keeper.keep(self.progress)
        return asked

    def _ending(self, asked: Decision) -> Ending:
        if asked.stop and (not self.is_over or self._owes_evaluation):
            return Ending("preempted", self.progress.done, asked.stop)
        return Ending("stopped" if self._stops else "finished", self.progress.done)

    def _tell(self, rate: float) -> None:
        window, rows = self.progress.window, self.progress.window.rows
        if rows:
            skipped = {"skipped": self.stepper.finite.skipped} if self.stepper.finite.skipped else {}
            with self.meter.clock.part("communication"):
                loss = window.close()
            values = {"loss": loss, "lr": rate, **skipped}
            self.observer.trained(self.progress.done, rows, values, self.meter.close(rows))

    @property
    def _evaluates_here(self) -> bool:
        now, every = self.progress, self.limits.evaluate_every
        return self._reached_the_end or (now.epoch > now.done.epoch and every > 0 and now.epoch % every == 0)

    @property
    def _owes_evaluation(self) -> bool:
        return self.evaluate is not None and self.progress.results is None and self._evaluates_here

    def _evaluate(self, asked: Decision) -> Decision:
        """Evaluate, if there is anything to; gives what was asked for before, or to stop amid the evaluation."""
        now = self.progress
        if self.evaluate is None:
            return asked
        try:
            with self.meter.clock.part("evaluation"):
                now.results = self.evaluate()
        except GivenUpError:
            return self.agreement.after(now.done.step, at_once=True)
        now.best = self.limits.best.better(now.best, now.results, now.done.step)
        now.wait = self.limits.patience.after(now.wait, now.results, now.done.step)
        self.observer.evaluated(now.done, now.results)
        if now.wait is not None and self.limits.patience.is_over(now.wait):
            log.info("%s", self.limits.patience.in_words(now.wait))
        return asked
