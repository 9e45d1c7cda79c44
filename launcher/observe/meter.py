"""What is measured while a run trains, between two lines of metrics, on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean

import torch
import torch.distributed as dist

from launcher.observe.clock import PARTS, Clock, shares_of
from launcher.observe.flops import Flops
from launcher.observe.gauges import Read
from launcher.observe.memory import memory_of

Join = Callable[[Sequence[float]], float]

OF_RANKS: Mapping[str, Join] = {
    "time/interval_s": fmean,
    **{f"time/{part}": fmean for part in PARTS},
    "memory/now_bytes": max,
    "memory/peak_bytes": max,
    "memory/reserved_bytes": max,
    "memory/allocator_retries": max,
    "gpu/sm": fmean,
    "gpu/tensor": fmean,
    "gpu/memory": fmean,
    "gpu/kernel_busy": fmean,
    "cpu/usable_cores": itemgetter(0),
    "cpu/use": itemgetter(0),
}
"""What each rank measures, and what is told of all ranks: their mean, the most, or that of the first that knows it."""
MEASURED = ("time/", "speed/", "memory/", "cpu/", "gpu/")
"""How the names of what is measured begin; no two runs have the same values."""


class Meter:
    """Measures nothing.

    Args:
        clock: those who train tell it which part begins.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()

    def begin(self) -> None:
        """An interval begins here."""

    def close(self, rows: int) -> Mapping[str, float]:  # noqa: ARG002 - nothing is measured
        """The interval ends, another begins; a collective.

        Args:
            rows: that were trained on, over all ranks.

        Returns:
            What was measured, by name; the same on all ranks.
        """
        return {}


class RunMeter(Meter):
    """Measures this rank, and puts together what all ranks measured.

    Args:
        clock: as in ``Meter``.
        device: of this rank.
        place: where the process group takes numbers.
        gauges: what else is read at the end of an interval, by the names in ``OF_RANKS``.
        flops: what the model computes and the device could; None where that is not known.
    """

    def __init__(
        self,
        clock: Clock,
        device: torch.device,
        place: torch.device,
        gauges: Sequence[Read] = (),
        flops: Flops | None = None,
    ) -> None:
        super().__init__(clock)
        self._device, self._place, self._gauges, self._flops = device, place, gauges, flops

    def begin(self) -> None:
        """An interval begins here."""
        self.clock.seconds()

    def close(self, rows: int) -> Mapping[str, float]:
        """As in ``Meter``."""
        seconds = self.clock.seconds()
        mine = {f"time/{part}": share for part, share in shares_of(seconds).items()}
        mine["time/interval_s"] = sum(seconds.values())
        mine |= {f"memory/{name}": value for name, value in memory_of(self._device).items()}
        for read in self._gauges:
            mine |= read()
        ranks = all_ranks([mine.get(name, math.nan) for name in OF_RANKS], self._place)
        return {**joined(ranks), **self._speed(rows / len(ranks), sum(seconds.values()) - seconds["evaluation"])}

    def _speed(self, rows: float, seconds: float) -> dict[str, float]:
        """Of a rank, by its rows and the seconds for which it did not evaluate."""
        if seconds <= 0:
            return {}
        told = {"speed/rows_per_s_per_rank": rows / seconds}
        return {**told, "speed/flop_utilisation": self._flops.utilisation(rows / seconds)} if self._flops else told


def all_ranks(mine: Sequence[float], place: torch.device) -> list[list[float]]:
    """The numbers of every rank, by rank; a collective."""
    if not dist.is_initialized():
        return [list(mine)]
    numbers = torch.tensor(mine, dtype=torch.float64, device=place)
    everyone = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, numbers)
    found: list[list[float]] = torch.stack(everyone).tolist()
    return found


def joined(ranks: Sequence[Sequence[float]]) -> dict[str, float]:
    """What is told of the ranks' numbers, which stand in the order of ``OF_RANKS``; NaN stands for what is not known.

    With several ranks, ``time/data_most`` is the share of the rank that waits most for data.
    """
    columns = {
        name: [value for value in column if not math.isnan(value)]
        for name, column in zip(OF_RANKS, zip(*ranks, strict=True), strict=True)
    }
    told = {name: OF_RANKS[name](values) for name, values in columns.items() if values}
    return {**told, "time/data_most": max(columns["time/data"])} if len(ranks) > 1 else told
