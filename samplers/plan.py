"""Who takes how many rows of a global batch, known from the numbers before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from samplers.settings import whole_number
from samplers.spans import Span, dealt, even_part
from samplers.words import counted

if TYPE_CHECKING:
    from samplers.report import PlanReport

__all__ = ["BatchPlan"]


@dataclass(frozen=True)
class BatchPlan:
    """The split of one global batch over ranks and micro-batches.

    Shares differ by one row at most, larger ones first. Every rank has the same number of micro-batches, so that a
    collective per micro-batch never waits for ever; no micro-batch has fewer than `min_per_device` rows. All methods
    but `shares` cost the same in a world of two ranks and of thousands.

    With `shard_rows` the global batch is first dealt to `shards` shards, which no number of ranks changes, and a rank
    takes neighbouring shards. Shards differ by one row at most, shares by one shard at most, larger ones first. A
    micro-batch is a number of whole shards. Ranks have equally many micro-batches, but for one where each micro-batch
    is a single shard and the ranks do not divide the shards.

    Args:
        global_size: rows of one optimizer step, over all ranks.
        world_size: ranks there are; those that cannot get `min_per_device` rows, or a shard, idle.
        min_per_device: fewest rows of a micro-batch.
        max_per_device: most rows of a micro-batch; None for no limit.
        shard_rows: fewest rows of a shard, of which there are global_size // shard_rows; None for no shards.

    Raises:
        ValueError: the numbers contradict each other; also for wrong types (`SettingTypeError`).

    >>> plan = BatchPlan(global_size=100, world_size=3)
    >>> plan.shares
    (34, 33, 33)
    >>> BatchPlan(global_size=100, world_size=3, max_per_device=20).micro_batches(1)
    (17, 16)
    >>> sharded = BatchPlan(global_size=100, world_size=2, shard_rows=32)
    >>> sharded.shares, sharded.shard_range(0)
    ((67, 33), range(0, 2))
    """

    global_size: int
    world_size: int
    min_per_device: int = 16
    max_per_device: int | None = None
    shard_rows: int | None = None

    def __post_init__(self) -> None:
        for name, remedy in (
            ("global_size", "give the rows of one optimizer step over all ranks"),
            ("world_size", "give the number of ranks that train"),
            ("min_per_device", "give the fewest rows a micro-batch may have"),
        ):
            self._set(name, whole_number(name, getattr(self, name), minimum=1, remedy=remedy))
        for name, remedy in (
            ("max_per_device", "give the most rows a micro-batch may have, or None for no limit"),
            ("shard_rows", "give the fewest rows a shard may have, or None for no shards"),
        ):
            if getattr(self, name) is not None:
                self._set(name, whole_number(name, getattr(self, name), minimum=1, remedy=remedy))
        self._check_sizes()
        self._check_shards()

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
        if self.shard_rows is None and not self.fits(self.global_size):
            share, count = self.global_size // self.active, self.micro_count(0)
            raise ValueError(
                f"max_per_device={self.max_per_device} cuts a share of {counted(share, 'row')} into {count} "
                f"micro-batches, the smallest of {counted(share // count, 'row')}, below "
                f"min_per_device={self.min_per_device}: raise max_per_device, lower min_per_device, or choose a "
                "global_size whose shares divide better"
            )

    def _check_shards(self) -> None:
        if self.shard_rows is None:
            return
        if self.shard_rows > self.global_size:
            raise ValueError(
                f"shard_rows={self.shard_rows} is larger than global_size={self.global_size}: not even one shard gets "
                "its rows; lower shard_rows or raise global_size"
            )
        if self.shard_rows < self.min_per_device:
            raise ValueError(
                f"shard_rows={self.shard_rows} makes shards smaller than min_per_device={self.min_per_device}, and a "
                "shard can be a micro-batch by itself: raise shard_rows or lower min_per_device"
            )
        if self.max_per_device is not None and self.max_per_device < self.largest_shard:
            raise ValueError(
                f"max_per_device={self.max_per_device} is smaller than a shard: global_size={self.global_size} in "
                f"{counted(self.shards, 'shard')} of shard_rows={self.shard_rows} or more gives shards of "
                f"{counted(self.largest_shard, 'row')}, and a shard is never cut; raise max_per_device to "
                f"{self.largest_shard} or lower shard_rows"
            )

    @cached_property
    def shards(self) -> int:
        """Shards of a global batch; 0 where shards are not in force."""
        return 0 if self.shard_rows is None else self.global_size // self.shard_rows

    @cached_property
    def largest_shard(self) -> int:
        """Most rows of a shard; 0 where shards are not in force."""
        return -(-self.global_size // self.shards) if self.shards else 0

    @cached_property
    def active(self) -> int:
        """Ranks that take rows: the first so many."""
        return min(self.world_size, self.shards or self.global_size // self.min_per_device)

    @property
    def idle(self) -> int:
        """Ranks that take none, because there is no shard for them or their share would be below `min_per_device`."""
        return self.world_size - self.active

    @property
    def shares(self) -> tuple[int, ...]:
        """Rows of each active rank; ranks beyond the last share idle."""
        return tuple(self.share_rows(rank) for rank in range(self.active))

    def share_rows(self, rank: int, rows: int | None = None) -> int:
        """Rows that `rank` takes of a global batch of `rows` rows (`global_size` where left out)."""
        return dealt(self.global_size if rows is None else rows, self._hands, self._held(rank))

    def shard_range(self, rank: int) -> range:
        """The shards that `rank` takes; empty where shards are not in force.

        Raises:
            ValueError: `rank` lies outside the world, or idles.
        """
        held = self._held(self._working(rank))
        return held if self.shards else range(0)

    @cached_property
    def _hands(self) -> int:
        """What rows are dealt to: shards, or where there are none the active ranks."""
        return self.shards or self.active

    def _held(self, rank: int) -> range:
        """Hands of a rank: its shards, or where there are none a single one."""
        return even_part(self._hands, self.active, rank)

    def _cuts(self, rows: int) -> int:
        """Micro-batches that the largest hand of a global batch of `rows` rows is cut into; a shard never is."""
        if self.shards or self.max_per_device is None:
            return 1
        return max(1, -(-rows // self.active // self.max_per_device))

    def micro_count(self, rank: int, rows: int | None = None) -> int:
        """Micro-batches of `rank` in a global batch of `rows` rows (`global_size` where left out).

        The same on every rank without shards. With shards it is the same for any `rows`.
        """
        if not self.shards:
            return self._cuts(self.global_size if rows is None else rows)
        at_once = self.max_per_device // self.largest_shard if self.max_per_device else self.shards
        return min(-(-len(self._held(0)) // at_once), len(self._held(rank)))

    def fits(self, rows: int) -> bool:
        """Whether every micro-batch of a global batch of `rows` rows has `min_per_device` rows or more.

        With shards: whether every shard has, whatever the number of ranks.
        """
        return rows // self._hands // self._cuts(rows) >= self.min_per_device

    def micro_span(self, rank: int, place: int, rows: int | None = None) -> Span:
        """The rows of micro-batch `place` of `rank` in a global batch of `rows` rows (`global_size` where left out)."""
        total, held = self.global_size if rows is None else rows, self._held(rank)
        count = self.micro_count(rank, total)
        if self.shards:
            part = even_part(len(held), count, place)
            mine = held[part.start : part.stop]
            return Span(self._hands, mine, 0, dealt(total, self._hands, mine))
        cut = even_part(dealt(total, self._hands, held), count, place)
        return Span(self._hands, held, cut.start, cut.stop)

    def micro_spans(self, rank: int, rows: int | None = None) -> list[Span]:
        """The micro-batches of `rank` in a global batch of `rows` rows (`global_size` where left out), in order."""
        return [self.micro_span(rank, place, rows) for place in range(self.micro_count(rank, rows))]

    def micro_batches(self, rank: int) -> tuple[int, ...]:
        """Rows of each micro-batch of `rank`, larger ones first.

        Raises:
            ValueError: `rank` lies outside the world, or idles.
        """
        return tuple(len(span) for span in self.micro_spans(self._working(rank)))

    def _working(self, rank: int) -> int:
        place = whole_number("rank", rank, minimum=0, remedy=f"give a rank from 0 to {self.world_size - 1}")
        self.check_works(place)
        return place

    def check_works(self, rank: int) -> None:
        """Raise a ValueError where `rank` lies outside the world, or would idle."""
        if rank >= self.world_size:
            raise ValueError(
                f"rank={rank} lies outside world_size={self.world_size}: give a rank from 0 to {self.world_size - 1}"
            )
        if rank < self.active:
            return
        if self.shard_rows is not None:
            raise ValueError(
                f"rank={rank} would idle: global_size={self.global_size} makes {counted(self.shards, 'shard')} of "
                f"shard_rows={self.shard_rows} or more, one for {self.active} of world_size={self.world_size} ranks "
                f"only; use {counted(self.active, 'rank')}, raise global_size to "
                f"{self.shard_rows * self.world_size}, or lower shard_rows"
            )
        raise ValueError(
            f"rank={rank} would idle: global_size={self.global_size} gives min_per_device={self.min_per_device} "
            f"rows to {self.active} of world_size={self.world_size} ranks only; use {counted(self.active, 'rank')}, "
            f"raise global_size to {self.min_per_device * self.world_size}, or lower min_per_device"
        )

    def report(self, n: int, tail: str = "drop") -> PlanReport:
        """Describe an epoch of `n` rows: data in fields, text by `str()`."""
        from samplers.report import report_plan  # noqa: PLC0415 - the report needs the plan first

        return report_plan(self, n, tail)
