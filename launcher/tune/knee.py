"""The smallest micro-batch that is fast enough, by an affine model of the time of a step; pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from launcher.tune.result import Probe

QUARTERS = 4
CLOSE = 1.25
"""Sizes that differ by this factor at most are not told apart any further."""


@dataclass(frozen=True)
class StepTime:
    """The seconds of a micro-batch: ``fixed_s + rows * row_s``."""

    fixed_s: float
    row_s: float

    def rows_in(self, seconds: float) -> float:
        """The rows of a micro-batch that takes so long."""
        return (seconds - self.fixed_s) / self.row_s if self.row_s > 0 else math.inf

    def misses(self, probe: Probe) -> float:
        """How far it is from what was measured, as a part of that."""
        seconds = median(probe.step_s)
        return abs(self.fixed_s + probe.rows * self.row_s - seconds) / seconds

    def rows_at(self, rows_per_s: float) -> float:
        """The fewest rows with so many rows per second; infinite where no size has."""
        left = 1 - rows_per_s * self.row_s
        return rows_per_s * self.fixed_s / left if left > 0 else math.inf


def step_time(probes: Sequence[Probe]) -> StepTime | None:
    """The affine model with the least relative errors, neither part below zero; None for fewer than two sizes."""
    points = [(probe.rows, median(probe.step_s)) for probe in probes if probe.step_s]
    if len({rows for rows, _ in points}) < 2:  # noqa: PLR2004 - a line
        return None
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_rows = sum(w * rows for w, (rows, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
    both = sum(w * (rows - mean_rows) * (s - mean_s) for w, (rows, s) in zip(weights, points, strict=True))
    square = sum(w * (rows - mean_rows) ** 2 for w, (rows, _) in zip(weights, points, strict=True))
    row_s = max(0.0, both / square)
    return StepTime(max(0.0, mean_s - row_s * mean_rows), row_s)


def fast_enough(probes: Sequence[Probe], target: float) -> Probe | None:
    """The smallest size that has ``target``, 0 to 1, of the best rows per second; None: no time is known."""
    fitting = [probe for probe in probes if probe.step_s]
    best = max((probe.rows_per_s for probe in fitting), default=0.0)
    fast = [probe for probe in fitting if probe.rows_per_s >= target * best]
    return min(fast, key=lambda probe: probe.rows, default=None)


def faster_next(least: int, grain: int, probes: Sequence[Probe], target: float) -> int | None:
    """The size to try next for the smallest that is fast enough; None: it is known well enough.

    Args:
        least: the smallest size.
        grain: sizes are multiples of it.
        probes: those so far, with the largest size among them.
        target: the part, 0 to 1, of the best rows per second.
    """
    fast, model = fast_enough(probes, target), step_time(probes)
    if fast is None or model is None or fast.rows <= least:
        return None
    slower = max((p for p in probes if p.step_s and p.rows < fast.rows), key=lambda p: p.rows, default=None)
    slow = slower.rows if slower else 0
    lowest, highest = max(least, slow + grain), fast.rows - grain
    if lowest > highest or fast.rows <= CLOSE * slow:
        return None
    guess = model.rows_at(target * max(probe.rows_per_s for probe in probes))
    if not slow < guess < fast.rows / CLOSE:
        if all(model.misses(probe) <= 1 - target for probe in (slower, fast) if probe):
            return None
        guess = math.sqrt(max(slow, 1) * fast.rows)
    return max(lowest, min(math.ceil(guess / grain) * grain, highest))


def known_to(probe: Probe) -> float:
    """How well the median of the steps is known, as a part of it.

    With four steps and more by the half of them in the middle, which a step that was disturbed does not widen: the
    median of m normal values has an error of 1.25 / sqrt(m) of theirs, which is 1 / 1.35 of the width of that half.
    """
    count = len(probe.step_s)
    if count < QUARTERS:
        return probe.spread / count
    low, middle, high = quantiles(probe.step_s, n=QUARTERS, method="inclusive")
    return 1.25 / 1.35 * (high - low) / middle / math.sqrt(count)


def noise(probes: Sequence[Probe], target: float) -> str | None:
    """Why no size is called fast enough: the steps of the best and of that one differ too much; None: they do not."""
    fast = fast_enough(probes, target)
    if fast is None:
        return "no step was timed"
    best = max(probes, key=lambda probe: probe.rows_per_s)
    known = math.hypot(known_to(fast), known_to(best))
    if known <= 1 - target:
        return None
    steps = " and ".join(f"those of {p.rows} rows by {100 * p.spread:.0f} %" for p in dict.fromkeys((fast, best)))
    return (
        f"equal steps differ too much, {steps}: rows per second are known to {100 * known:.0f} %, and "
        f"{100 * (1 - target):.0f} % decide; try again on a machine that does nothing else"
    )
