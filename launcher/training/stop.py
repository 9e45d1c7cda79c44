"""``trainer.stop_when``: stop once an evaluation fulfils a rule."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from launcher.processes.errors import SettingsError, closest

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
PART = re.compile(r"\s*(?:test/)?([\w.]+)\s*(>=|<=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class StopRule:
    """Conditions on the metrics of one evaluation, all of which must hold."""

    conditions: tuple[tuple[str, str, float], ...]

    @classmethod
    def parse(cls, text: str | None, metrics: Collection[str]) -> StopRule:
        """Read ``"accuracy >= 0.99 and loss <= 0.1"``; a rule without text never holds.

        Raises:
            SettingsError: for text that is no rule, or a metric that is not evaluated.
        """
        return cls(tuple(_condition(part, text, metrics) for part in re.split(r"\band\b", text)) if text else ())

    def holds(self, results: Mapping[str, float]) -> bool:
        """Whether ``results`` fulfil every condition."""
        return bool(self.conditions) and all(
            OPERATORS[sign](results[name], bound) for name, sign, bound in self.conditions
        )


def _condition(part: str, text: str, metrics: Collection[str]) -> tuple[str, str, float]:
    found = PART.fullmatch(part)
    rule = f"trainer.stop_when={text!r}"
    if not found:
        raise SettingsError(f"{rule}: {part.strip()!r} is no condition; write e.g. 'accuracy >= 0.99 and loss <= 0.1'")
    name, sign, bound = found.groups()
    if not metrics:
        raise SettingsError(f"{rule}: nothing is evaluated without data.test")
    if name not in metrics:
        raise SettingsError(f"{rule}: {name} is not evaluated{closest(name, metrics)}; there are {', '.join(metrics)}")
    try:
        return name, sign, float(bound)
    except ValueError as error:
        raise SettingsError(f"{rule}: {bound} is not a number") from error
