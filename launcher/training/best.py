"""``checkpoint.keep_best``: which evaluation was the best so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from launcher.processes.errors import SettingsError, closest


@dataclass(frozen=True)
class Best:
    """The best evaluation so far.

    Attributes:
        metric: as ``checkpoint.keep_best`` names it.
        value: of the metric.
        step: after which it was evaluated.
    """

    metric: str
    value: float
    step: int


@dataclass(frozen=True)
class BestRule:
    """Says which of two evaluations is the better.

    Attributes:
        metric: ``accuracy`` where the highest is best, ``-loss`` where the lowest is; None: nobody asks.
    """

    metric: str | None = None

    @classmethod
    def parse(cls, text: str | None, metrics: Collection[str], option: str = "checkpoint.keep_best") -> BestRule:
        """Read ``accuracy`` or ``-loss``, also as ``test/accuracy`` and ``-test/loss``, the value of ``option``.

        Raises:
            SettingsError: for a metric that is not evaluated, and for the highest loss, which nobody wants.
        """
        sign = "-" if text and text.startswith("-") else ""
        name = (text or "").removeprefix(sign).removeprefix("test/")
        setting = f"{option}={text}"
        if text and not metrics:
            raise SettingsError(f"{setting}: nothing is evaluated without data.test")
        if text and name not in metrics:
            raise SettingsError(
                f"{setting}: {name} is not evaluated{closest(name, metrics)}; there are {', '.join(metrics)}"
            )
        if text and sign + name == "loss":
            raise SettingsError(f"{setting} takes the highest loss for the best; set {option}=-loss")
        return cls(sign + name or None)

    def better(self, before: Best | None, results: Mapping[str, float], step: int) -> Best | None:
        """The better of the best so far and the evaluation after ``step``; the earlier where they are equal.

        What is no number is never the best, and the best by another metric counts no longer.

        >>> rule = BestRule("-loss")
        >>> best = rule.better(None, {"loss": 0.5}, 10)
        >>> [rule.better(best, {"loss": loss}, 20).step for loss in (0.4, 0.5, 0.6, float("nan"))]
        [20, 10, 10, 10]
        """
        if self.metric is None:
            return None
        best = before if before is not None and before.metric == self.metric else None
        value = results[self.metric.lstrip("-")]
        if math.isnan(value) or (best is not None and self._rank(value) <= self._rank(best.value)):
            return best
        return Best(self.metric, value, step)

    def _rank(self, value: float) -> float:
        return -value if self.metric and self.metric.startswith("-") else value
