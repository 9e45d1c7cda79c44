"""From one probe to the next, and from the last one to the answer; pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.processes.errors import SettingsError
from launcher.tune.knee import fast_enough, faster_next, noise, step_time
from launcher.tune.plan_sizes import best_size, useful
from launcher.tune.result import Probe, Tuning
from launcher.tune.search import Bounds, check_smallest, gap_of, largest_next

FIRST = 3
"""Probes that come first in any case: two for a line through memory, and one for where it leads."""
KEPT_BACK = 1
"""Probes that are left after those for the size that is recommended."""


@dataclass(frozen=True)
class Steer:
    """What is asked for.

    Attributes:
        bounds: the sizes that may be tried.
        sizes: those that a share can be cut into, smallest first.
        target: the part, 0 to 1, of the best rows per second that is fast enough.
        patience_s: seconds that a micro-batch may take; larger ones are not tried.
        patience: the setting that says so, with its value.
    """

    bounds: Bounds
    sizes: tuple[int, ...]
    target: float = 0.95
    patience_s: float = float("inf")
    patience: str = ""

    def next_size(self, probes: Sequence[Probe], available_bytes: int) -> int | None:
        """The size to try next; None: the answer is known, or no probe is left.

        Raises:
            SettingsError: where not even the smallest size fits.
        """
        left = self.bounds.most_probes - len(probes)
        if left <= 0:
            check_smallest(self.bounds, probes, available_bytes)
            return None
        bounds = self.within_patience(probes)
        rows = largest_next(bounds, probes, available_bytes)
        if rows is None and left > KEPT_BACK:
            rows = faster_next(bounds.least, bounds.grain, probes, self.target)
        if rows is None or (left <= KEPT_BACK and len(probes) >= FIRST):
            rows = self._recommended(probes) or rows
        return None if rows in {probe.rows for probe in probes} else rows

    def within_patience(self, probes: Sequence[Probe]) -> Bounds:
        """The bounds, without the sizes that would take too long."""
        model, bounds = step_time(probes), self.bounds
        if model is None or model.rows_in(self.patience_s) >= bounds.cap:
            return bounds
        fits = max(probe.rows for probe in probes if probe.fits)
        cap = max(fits, bounds.whole(model.rows_in(self.patience_s)))
        return replace(bounds, cap=cap, capped_by=self.patience) if cap < bounds.cap else bounds

    def answer(self, probes: Sequence[Probe], available_bytes: int, load: float) -> Tuning:
        """What follows from the probes, of which one fits.

        Raises:
            SettingsError: where a share cannot be cut into micro-batches that were seen to fit.
        """
        bounds = self.within_patience(probes)
        gap = gap_of(bounds, probes)
        fast, why = fast_enough(probes, self.target), noise(probes, self.target)
        return Tuning(
            probes=tuple(probes),
            fits=gap.fits,
            limited_by="memory" if gap.seen else bounds.capped_by,
            exact=gap.above - gap.fits <= bounds.grain,
            fast_enough=None if fast is None or why else fast.rows,
            noise=why,
            recommended=self._tried(probes),
            available_bytes=available_bytes,
            load=load,
        )

    def _recommended(self, probes: Sequence[Probe]) -> int | None:
        """The size to recommend, tried or not; None: a share cannot be cut into what fits."""
        fits = max(probe.rows for probe in probes if probe.fits)
        return best_size(self.sizes, self._wanted(probes, fits), fits)

    def _wanted(self, probes: Sequence[Probe], fits: int) -> int:
        """The size that is fast enough; where noise does not tell, a whole share or the largest that fits."""
        fast = fast_enough(probes, self.target)
        return fast.rows if fast and noise(probes, self.target) is None else min(fits, self.sizes[-1])

    def _tried(self, probes: Sequence[Probe]) -> int:
        """The size to recommend, or what comes closest to it of those that were tried."""
        tried = sorted(probe.rows for probe in probes if probe.fits)
        best = self._recommended(probes)
        possible = [rows for rows in tried if useful(self.sizes, rows)]
        if not possible:
            raise SettingsError(
                f"of a share of {self.sizes[-1]} rows no micro-batches can be cut that fit: they would have "
                f"{self.sizes[0]} rows at least, and {tried[-1]} fit; lower batch.min_per_device or "
                "batch.global_size, or take more devices"
            )
        if best in tried:
            return int(best)
        return min(possible, key=lambda rows: (rows < (best or 0), abs(rows - (best or 0))))
