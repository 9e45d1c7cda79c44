"""Who takes how many rows of a global batch, known from the numbers before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samplers.settings import whole_number

if TYPE_CHECKING:
    from samplers.report import PlanReport

__all__ = ["BatchPlan"]


@dataclass(frozen=True)
class BatchPlan:
    """The split of one global batch over ranks and micro-batches.

    Shares differ by one row at most, larger ones first. Every rank has the same number of micro-batches, so that a
    collective per micro-batch never waits for ever; no micro-batch has fewer than `min_per_device` rows. All methods
    but `shares` cost the same in a world of two ranks and of thousands.

    Args:
        global_size: rows of one optimizer step, over all ranks.
        world_size: ranks there are; those that cannot get `min_per_device` rows idle.
        min_per_device: fewest rows of a micro-batch.
        max_per_device: most rows of a micro-batch; None for no limit.

    Raises:
        ValueError: the numbers contradict each other; also for wrong types (`SettingTypeError`).

    >>> plan = BatchPlan(global_size=100, world_size=3)
    >>> plan.shares
    (34, 33, 33)
    >>> BatchPlan(global_size=100, world_size=3, max_per_device=20).micro_batches(1)
    (17, 16)
    """

    global_size: int
    world_size: int
    min_per_device: int = 16
    max_per_device: int | None = None

    def __post_init__(self) -> None:
        for name, remedy in (
            ("global_size", "give the rows of one optimizer step over all ranks"),
            ("world_size", "give the number of ranks that train"),
            ("min_per_device", "give the fewest rows a micro-batch may have"),
        ):
            self._set(name, whole_number(name, getattr(self, name), minimum=1, remedy=remedy))
        if self.max_per_device is not None:
            remedy = "give the most rows a micro-batch may have, or None for no limit"
            self._set("max_per_device", whole_number("max_per_device", self.max_per_device, minimum=1, remedy=remedy))
        self._check_sizes()

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
        if self.global_size < self.min_per_device:
            raise ValueError(
                f"global_size={self.global_size} is smaller than min_per_device={self.min_per_device}: not even one "
                "rank can get its rows; raise global_size or lower min_per_device"
            )
        if self.max_per_device is not None and self.max_per_device < self.min_per_device:
            raise ValueError(
                f"max_per_device={self.max_per_device} is smaller than min_per_device={self.min_per_device}: no "
                "micro-batch can satisfy both; raise max_per_device or lower min_per_device"
            )
        if not self.fits(self.global_size):
            share, count = self.global_size // self.active, self.micro_count(self.global_size)
            raise ValueError(
                f"max_per_device={self.max_per_device} cuts a share of {share} rows into {count} micro-batches, the "
                f"smallest of {share // count} rows, below min_per_device={self.min_per_device}: raise max_per_device, "
                "lower min_per_device, or choose a global_size whose shares divide better"
            )

    @property
    def active(self) -> int:
        """Ranks that take rows: the first so many."""
        return min(self.world_size, self.global_size // self.min_per_device)

    @property
    def idle(self) -> int:
        """Ranks that take none, because their share would be smaller than `min_per_device`."""
        return self.world_size - self.active

    @property
    def shares(self) -> tuple[int, ...]:
        """Rows of each active rank; ranks beyond the last share idle."""
        return tuple(self.share_rows(rank) for rank in range(self.active))

    def share_rows(self, rank: int, rows: int | None = None) -> int:
        """Rows that `rank` takes of a global batch of `rows` rows (`global_size` where left out)."""
        total = self.global_size if rows is None else rows
        return total // self.active + (rank < total % self.active)

    def micro_count(self, rows: int) -> int:
        """Micro-batches per rank of a global batch of `rows` rows; the same on every rank."""
        if self.max_per_device is None:
            return 1
        largest = -(-rows // self.active)
        return max(1, -(-largest // self.max_per_device))

    def fits(self, rows: int) -> bool:
        """Whether every micro-batch of a global batch of `rows` rows has `min_per_device` rows or more."""
        return rows // self.active // self.micro_count(rows) >= self.min_per_device

    def micro_span(self, rank: int, place: int, rows: int) -> tuple[int, int]:
        """Half-open interval [start, stop) of micro-batch `place` within the share of `rank`."""
        small, larger = divmod(self.share_rows(rank, rows), self.micro_count(rows))
        start = place * small + min(place, larger)
        return start, start + small + (place < larger)

    def micro_batches(self, rank: int) -> tuple[int, ...]:
        """Rows of each micro-batch of `rank`, larger ones first.

        Raises:
            ValueError: `rank` lies outside the world, or idles.
        """
        place = whole_number("rank", rank, minimum=0, remedy=f"give a rank from 0 to {self.world_size - 1}")
        self.check_works(place)
        spans = (self.micro_span(place, micro, self.global_size) for micro in range(self.micro_count(self.global_size)))
        return tuple(stop - start for start, stop in spans)

    def check_works(self, rank: int) -> None:
        """Raise a ValueError where `rank` lies outside the world, or would idle."""
        if rank >= self.world_size:
            raise ValueError(
                f"rank={rank} lies outside world_size={self.world_size}: give a rank from 0 to {self.world_size - 1}"
            )
        if rank >= self.active:
            raise ValueError(
                f"rank={rank} would idle: global_size={self.global_size} gives min_per_device={self.min_per_device} "
                f"rows to {self.active} of world_size={self.world_size} ranks only; use {self.active} ranks, raise "
                f"global_size to {self.min_per_device * self.world_size}, or lower min_per_device"
            )

    def report(self, n: int, tail: str = "drop") -> PlanReport:
        """Describe an epoch of `n` rows: data in fields, text by `str()`."""
        from samplers.report import report_plan  # noqa: PLC0415 - the report needs the plan first

        return report_plan(self, n, tail)
