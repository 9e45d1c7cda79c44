"""Which micro-batch size to try next: first the largest that fits, by a line through memory; pure arithmetic.

Every rank asks with the same probes and gets the same size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.processes.errors import SettingsError
from launcher.tune.result import Probe
from launcher.tune.words import in_bytes
from samplers.words import counted

APART = 7
"""Rows, or shards, by which the second size is larger at least, since memory is never quite the same twice."""
OVERSHOT = 8
"""The first step back from a size that the line said would fit is this part of what is left open."""
FAR = 4
"""Sizes that differ by more than this factor say little of what lies between them."""
WIDENS = 4
"""Where the line says too little again and again, steps above what fits grow by this factor."""


@dataclass(frozen=True)
class Bounds:
    """What sizes may be tried.

    Attributes:
        least: the smallest.
        cap: the largest, whatever the memory.
        capped_by: what sets ``cap``, with its value.
        grain: all sizes are multiples of it, but for ``cap``.
        most_probes: sizes that are tried at most.
    """

    least: int
    cap: int
    capped_by: str
    grain: int = 1
    most_probes: int = 8

    def whole(self, rows: float) -> int:
        """The largest size that may be tried and is no larger than ``rows``, at least the smallest."""
        return max(self.least, min(int(rows), self.cap) // self.grain * self.grain)


@dataclass(frozen=True)
class Gap:
    """What is known of the boundary.

    Attributes:
        fits: the largest size that fits.
        above: the smallest that does not, or the first beyond the cap.
        seen: whether ``above`` was tried.
    """

    fits: int
    above: int
    seen: bool


def gap_of(bounds: Bounds, probes: Sequence[Probe]) -> Gap:
    """What the probes, of which one fits, say of the boundary."""
    fits = max(probe.rows for probe in probes if probe.fits)
    failed = [probe.rows for probe in probes if not probe.fits]
    return Gap(fits, min(failed), seen=True) if failed else Gap(fits, bounds.cap + bounds.grain, seen=False)


def largest_next(bounds: Bounds, probes: Sequence[Probe], available_bytes: int) -> int | None:
    """The size to try next for the largest that fits; None: it is known.

    Args:
        bounds: what may be tried.
        probes: those so far.
        available_bytes: of the device with the least.

    Raises:
        SettingsError: where not even the smallest fits.
    """
    if not probes:
        return bounds.least
    check_smallest(bounds, probes, available_bytes)
    gap = gap_of(bounds, probes)
    if gap.above - gap.fits <= bounds.grain:
        return None
    if len(probes) == 1:
        return bounds.whole(max(2 * gap.fits, gap.fits + APART * bounds.grain))
    lowest, highest = gap.fits + bounds.grain, gap.above - bounds.grain
    return max(lowest, min(bounds.whole(_guess(bounds, probes, gap, available_bytes)), highest))


def _guess(bounds: Bounds, probes: Sequence[Probe], gap: Gap, available_bytes: int) -> float:
    """Where the boundary may lie; the caller keeps it inside the gap."""
    by_line = fitting_rows(probes, available_bytes)
    failed = sum(not probe.fits for probe in probes)
    if by_line is None:
        return (gap.fits + gap.above) // 2 if gap.seen else 2 * gap.fits
    if by_line < gap.above:
        return max(by_line, gap.fits + bounds.grain * float(WIDENS) ** _said_too_little(probes, available_bytes))
    if not gap.seen:
        return by_line
    if gap.fits * FAR < gap.above:
        return math.sqrt(gap.fits * gap.above)
    return gap.above - (gap.above - gap.fits) // (OVERSHOT if failed == 1 else 2)


def _said_too_little(probes: Sequence[Probe], available_bytes: int) -> int:
    """How often a size was seen to fit that the line through those before it had ruled out."""
    earlier = [(probe, [p for p in probes[:number] if p.fits]) for number, probe in enumerate(probes) if probe.fits]
    lines = [(probe.rows, fitting_rows(fitting, available_bytes)) for probe, fitting in earlier if len(fitting) > 1]
    return sum(by_line is not None and rows > by_line for rows, by_line in lines)


def fitting_rows(probes: Sequence[Probe], available_bytes: int) -> float | None:
    """The rows whose memory is ``available_bytes``, by the line through two sizes that fit; None: there is none.

    The line goes through the largest size and the largest of at most half of it, so that what memory is rounded to
    does not tilt it; with one size alone it goes through zero, which memory never is below.
    """
    known = sorted((p.rows, p.peak_bytes) for p in probes if p.fits and p.peak_bytes)
    if not known:
        return None
    rows, peak = known[-1]
    below = [point for point in known if 2 * point[0] <= rows] or known[:1]
    rows_below, peak_below = below[-1] if len(known) > 1 else (0, 0)
    slope = (peak - peak_below) / (rows - rows_below)
    return rows + (available_bytes - peak) / slope if slope > 0 else float(2**31)


def check_smallest(bounds: Bounds, probes: Sequence[Probe], available_bytes: int) -> None:
    """Refuse to go on where not even the smallest size fits.

    Raises:
        SettingsError: with the bytes that it took, and those that there are.
    """
    first = probes[0]
    if first.fits or any(probe.fits for probe in probes):
        return
    taken = f"it took {in_bytes(first.peak_bytes)}" if first.peak_bytes else "what it took is not known"
    raise SettingsError(
        f"batch.min_per_device={bounds.least}: not even a micro-batch of {counted(first.rows, 'row')} fits: {taken} "
        f"before {first.why_not}, and there are {in_bytes(available_bytes)}; lower batch.min_per_device, take a "
        "smaller model, trainer.precision=bf16, or a device with more memory"
    )
