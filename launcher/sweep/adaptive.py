"""The jobs of a search that learns from those that are over: the trials of an Optuna study."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from launcher.processes.errors import SettingsError
from launcher.sweep.curve import evaluations, key_of_metric
from launcher.sweep.jobs import DONE, FINISHED, PRUNED, STOPPED, Job, Record
from launcher.sweep.journal import load_optuna
from launcher.sweep.space import Space
from launcher.sweep.study import Kept, Sampling

if TYPE_CHECKING:
    from optuna.trial import Trial

log = logging.getLogger(__name__)
PATIENCE = 10
"""Trials that may be refused before the first is not."""
Compose: TypeAlias = Callable[[int, Sequence[str]], Job]


@dataclass(frozen=True)
class Goal:
    """What a search is after.

    Attributes:
        space: what is searched.
        sampling: draws.
        metric: ``sweep.metric``.
        direction: maximize or minimize.
        n_trials: the most that there will be in the study.
        sweep_dir: what the folders of records are relative to.
    """

    space: Space
    sampling: Sampling
    metric: str
    direction: str
    n_trials: int
    sweep_dir: Path

    def about(self) -> dict[str, str]:
        """By what a study of this search is known."""
        return {"sweep.metric": self.metric, **self.space.about()}


@dataclass
class Out:
    """A trial whose job is given out.

    Attributes:
        trial: which.
        step: of the last evaluation that the study knows; -1: it knows none.
        seen: step and value of the last look.
    """

    trial: Trial
    step: int = -1
    seen: tuple[int, float] | None = None


class OptunaSource:
    """A ``Source``: job numbers are trial numbers, and each trial is given out once and told once.

    A trial that was given out before a restart, and is not over, is given out again, with its number and values, before
    new ones are drawn. So is one whose job failed: it is not told, and for the sampler it has no value yet. One whose
    settings are refused counts as failed, and the next is drawn; where the first ones all are, the search is at fault
    rather than the trials.

    Args:
        kept: the study; nobody else adds to it meanwhile.
        goal: of the search.
        compose: a job from its number and its overrides.
    """

    def __init__(self, kept: Kept, goal: Goal, compose: Compose) -> None:
        self._kept = kept
        self._goal = goal
        self._compose = compose
        self._left = kept.running()
        self._out: dict[int, Out] = {}
        self._refused: list[tuple[Trial, SettingsError]] = []
        self._has_begun = False

    def ask(self) -> Job | None:
        """The job of the next trial; None where there are as many as there may be.

        Raises:
            SettingsError: where no trial can be composed.
        """
        while (self._has_begun or len(self._refused) < PATIENCE) and (out := self._next()) is not None:
            if job := self._job_of(out.trial):
                self._has_begun = True
                self._out[job.number] = out
                self._give_up_refused()
                return job
        if self._refused and not self._has_begun:
            raise self._refused[0][1]
        self._give_up_refused()
        return None

    def _job_of(self, trial: Trial) -> Job | None:
        """None where it is refused."""
        try:
            return self._compose(trial.number, self._goal.space.overrides(trial))
        except SettingsError as error:
            self._refused.append((trial, error))
            return None

    def tell(self, record: Record) -> None:
        """A job is over; one that failed or was preempted is not, and is given out again another time."""
        out = self._out.pop(record.number, None)
        if out is None or record.state not in DONE:
            return
        for step, value in self._news(out, record):
            out.trial.report(value, step)
        states = load_optuna().trial.TrialState
        if record.state == PRUNED:
            self._tell(out.trial, state=states.PRUNED)
        elif not _is_number(record.value):
            self._tell(out.trial, state=states.FAIL)
        else:
            self._tell(out.trial, values=record.value)
        if record.state in (FINISHED, STOPPED) and not _is_number(record.value):
            log.warning(
                "job %d ended with sweep.metric=%s no number: its trial counts as failed",
                record.number,
                self._goal.metric,
            )

    def prunes(self, record: Record) -> bool:
        """Whether an evaluation that is new says that the job is not worth going on with."""
        out, key = self._out.get(record.number), key_of_metric(self._goal.metric)
        if out is None or key not in record.metrics or out.seen == (record.step, record.metrics[key]):
            return False
        out.seen = (record.step, record.metrics[key])
        return any(_prunes_at(out, step, value) for step, value in self._news(out, record))

    def _news(self, out: Out, record: Record) -> list[tuple[int, float]]:
        """The evaluations that the study does not know yet; none where nobody is to judge them."""
        if not self._kept.has_pruner:
            return []
        found = evaluations(self._goal.sweep_dir / record.folder, self._goal.metric)
        return [(step, value) for step, value in found if step > out.step]

    def _next(self) -> Out | None:
        study = self._kept.study
        number = self._left[0][0].number if self._left else self._kept.drawn()
        study.sampler = self._goal.sampling.sampler(number)
        if self._left:
            return Out(*self._left.pop(0))
        return Out(study.ask()) if number < self._goal.n_trials else None

    def _give_up_refused(self) -> None:
        for trial, error in self._refused:
            log.warning("trial %d is not started, and counts as failed: %s", trial.number, error)
            self._tell(trial, state=load_optuna().trial.TrialState.FAIL)
        self._refused.clear()

    def _tell(self, trial: Trial, **outcome: Any) -> None:
        try:
            self._kept.study.tell(trial, **outcome)
        except RuntimeError as error:
            if "Study.stop" not in str(error):  # how a sampler says that it has drawn all there is
                raise


def _prunes_at(out: Out, step: int, value: float) -> bool:
    out.trial.report(value, step)
    out.step = step
    return out.trial.should_prune()


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)
