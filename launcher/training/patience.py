"""``trainer.patience``: stop once nothing better has come for some evaluations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.processes.errors import SettingsError
from launcher.training.best import Best, BestRule

LEAST_LOSS = "-loss"


@dataclass(frozen=True)
class Wait:
    """How long nothing better has come.

    Attributes:
        best: the best evaluation so far; None where none was a number.
        evaluations: that came since.
    """

    best: Best | None = None
    evaluations: int = 0

    @classmethod
    def restored(cls, kept: Mapping[str, Any] | None) -> Wait | None:
        """What ``asdict`` made of one; None: nobody waited."""
        return None if kept is None else cls(kept["best"] and Best(**kept["best"]), kept["evaluations"])


@dataclass(frozen=True)
class Patience:
    """Says when to wait no longer.

    Attributes:
        limit: evaluations in a row that may be no better than the best before them; None: any number.
        rule: says which evaluation is the better.
    """

    limit: int | None = None
    rule: BestRule = field(default_factory=BestRule)

    @classmethod
    def parse(cls, limit: int | None, keep_best: str | None, metrics: Collection[str]) -> Patience:
        """Of ``trainer.patience``, by the metric of ``checkpoint.keep_best`` or else by the lowest loss.

        Raises:
            SettingsError: where nothing is evaluated.
        """
        if limit is None:
            return cls()
        if not metrics:
            raise SettingsError(f"trainer.patience={limit}: nothing is evaluated without data.test")
        return cls(limit, BestRule.parse(keep_best or LEAST_LOSS, metrics))

    def after(self, wait: Wait | None, results: Mapping[str, float], step: int) -> Wait | None:
        """The wait after the evaluation of ``step``; it begins anew where the metric has become another.

        >>> patience, wait = Patience(2, BestRule("-loss")), None
        >>> for step, loss in enumerate((0.5, 0.6, 0.4, 0.4, float("nan"))):
        ...     wait = patience.after(wait, {"loss": loss}, step)
        ...     print(wait.best.value, wait.evaluations, patience.is_over(wait))
        0.5 0 False
        0.5 1 False
        0.4 0 False
        0.4 1 False
        0.4 2 True
        """
        if self.limit is None:
            return None
        if wait is None or (wait.best is not None and wait.best.metric != self.rule.metric):
            wait = Wait()
        best = self.rule.better(wait.best, results, step)
        return Wait(best, 0 if best != wait.best else wait.evaluations + 1)

    def is_over(self, wait: Wait | None) -> bool:
        """Whether so many evaluations came that were no better."""
        return self.limit is not None and wait is not None and wait.evaluations >= self.limit

    def in_words(self, wait: Wait) -> str:
        """Why a run ends that waited long enough."""
        metric = str(self.rule.metric).lstrip("-")
        since = f"{metric} {wait.best.value:.4f} after step {wait.best.step}" if wait.best else "the beginning"
        return f"trainer.patience={self.limit}: nothing better in {wait.evaluations} evaluations than {since}"
