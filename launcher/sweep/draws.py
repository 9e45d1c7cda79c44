"""What a search may draw for a setting: one of some choices, a number of an interval, or one of a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, TypeAlias

Number: TypeAlias = int | float


class Draws(Protocol):
    """Draws values, as an ``optuna.trial.Trial`` does; bounds are inclusive."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        """One of ``choices``."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number."""


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Attributes:
        name: of the setting.
        texts: the values, as they stand in an override.
    """

    name: str
    texts: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.texts)

    def draw(self, draws: Draws) -> str:
        """A value, as it stands in an override."""
        return draws.suggest_categorical(self.name, self.texts)

    def __str__(self) -> str:
        return f"one of {', '.join(self.texts)}"


@dataclass(frozen=True)
class Interval:
    """A number between two bounds, which are part of it.

    Attributes:
        name: of the setting.
        low: the lower bound; whole numbers are drawn where both bounds are whole.
        high: the upper bound.
        log: whether its logarithm is drawn evenly, rather than itself.
    """

    name: str
    low: Number
    high: Number
    log: bool = False

    @property
    def size(self) -> int | None:
        """How many values there are; None: too many to count."""
        return self.high - self.low + 1 if isinstance(self.low, int) and isinstance(self.high, int) else None

    def draw(self, draws: Draws) -> str:
        """A value, as it stands in an override."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return str(draws.suggest_int(self.name, self.low, self.high, log=self.log))
        return repr(draws.suggest_float(self.name, self.low, self.high, log=self.log))

    def __str__(self) -> str:
        kind = "whole numbers, " if self.size else ""
        return f"{self.low} to {self.high}{f' ({kind}log)' if self.log else f' ({kind[:-2]})' if kind else ''}"


@dataclass(frozen=True)
class Range:
    """One of some numbers that lie as far apart as each other.

    Attributes:
        name: of the setting.
        values: whole numbers as a ``range``, others one by one.
        step: from each to the next; may be below zero.
        log: whether its logarithm is drawn evenly, rather than itself.
    """

    name: str
    values: range | tuple[float, ...]
    step: Number
    log: bool = False

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    def draw(self, draws: Draws) -> str:
        """A value, as it stands in an override; the same text as in a sweep over all of them."""
        return str(self.values[round((self._drawn(draws) - self.values[0]) / self.step)])

    def _drawn(self, draws: Draws) -> Number:
        if isinstance(self.values, range):
            low, high = sorted((self.values[0], self.values[-1]))
            return draws.suggest_int(self.name, low, high, step=abs(self.values.step), log=self.log)
        first, step = Decimal(str(self.values[0])), Decimal(str(self.step))  # bounds that are whole steps apart
        ends = (float(first), float(first + step * (self.size - 1)))
        return draws.suggest_float(self.name, min(ends), max(ends), step=abs(self.step))

    def __str__(self) -> str:
        texts = [str(value) for value in self.values[:3]]
        rest = ["...", str(self.values[-1])] if self.size > len(texts) else []
        return f"one of {', '.join([*texts, *rest])}{' (log)' if self.log else ''}"


Parameter: TypeAlias = Choice | Interval | Range
