"""What was measured of each micro-batch size, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Probe:
    """A micro-batch size that ran, or did not.

    Attributes:
        rows: of the micro-batch.
        fits: whether every rank ran it.
        why_not: what happened where it does not fit, and on which rank; None: it fits.
        peak_bytes: that it took at most beyond what the process took before, on the rank with the most; None: unknown.
        step_s: seconds of each measured micro-batch (forward, backward and its part of the optimizer), on the slowest
            rank; empty where it does not fit.
        evaluate_s: seconds of the micro-batch in evaluation; None: where it does not fit, or nothing is evaluated.
    """

    rows: int
    fits: bool
    why_not: str | None = None
    peak_bytes: int | None = None
    step_s: tuple[float, ...] = ()
    evaluate_s: float | None = None

    @property
    def rows_per_s(self) -> float:
        """Rows per second of one device, by the median step; 0 where it does not fit."""
        return self.rows / median(self.step_s) if self.step_s else 0.0

    @property
    def spread(self) -> float:
        """Difference of the slowest and the fastest step, as a share of the median."""
        return (max(self.step_s) - min(self.step_s)) / median(self.step_s) if self.step_s else 0.0


@dataclass(frozen=True)
class Tuning:
    """The answer: each size in it was run.

    Attributes:
        probes: in the order they were run.
        fits: the largest micro-batch that fits.
        limited_by: what keeps it from being larger: ``memory``, or the setting or fact with its value, such as
            ``data.train has 1,437 rows``.
        exact: whether one row more was seen not to fit, or is ruled out by ``limited_by``.
        fast_enough: the smallest micro-batch with 95 % of the best throughput; None where noise does not tell.
        noise: why no size is called fast enough; None: one is.
        recommended: for ``batch.max_per_device``.
        available_bytes: of the device with the least, or of the memory of this machine that a rank may take.
        load: processes that ran or waited to run on this machine for each usable core while it was measured.
        train_rows: of ``data.train``; None: not known.
        target: the part of the best throughput from which on a size is fast enough.
    """

    probes: tuple[Probe, ...]
    fits: int
    limited_by: str
    exact: bool
    fast_enough: int | None
    noise: str | None
    recommended: int
    available_bytes: int
    load: float
    train_rows: int | None = None
    target: float = 0.95
