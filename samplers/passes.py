"""The global batches of one pass through an epoch, by arithmetic alone.

A pass runs over places: with the tails `drop`, `pad` and `spread` place p is position p of the epoch's order (and place
p >= n, which only `pad` has, is position p mod n again). With `carry` the first `carried` places are the last positions
of the epoch before, and the epoch's own positions follow.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from samplers.settings import whole_number
from samplers.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samplers.orders import Order
    from samplers.permutation import Integers
    from samplers.plan import BatchPlan

__all__ = ["TAILS", "Pass", "Share", "check_pad_weight", "check_tail"]

TAILS = ("drop", "pad", "spread", "carry")

_AHEAD = 4_096
"""Rows that are drawn at once: enough for numpy to be cheap per row, few enough for a quick first batch."""


@dataclass(frozen=True)
class Share:
    """One micro-batch of one rank.

    Attributes:
        step: its optimizer step, counted from the start of the epoch.
        rows: rows in the micro-batch, padded ones included.
        real_rows: the first so many of them count.
        global_rows: rows of its global batch that count, over all ranks: what the step divides by.
        last_in_step: whether the optimizer steps after it.
        shards: the shards it holds: row i belongs to `shards[i % len(shards)]`; empty where shards are not in force.
    """

    step: int
    rows: int
    real_rows: int
    global_rows: int
    last_in_step: bool
    shards: range = range(0)


def check_tail(plan: BatchPlan, n: int, tail: object) -> str:
    """Return `tail` as a str if an epoch of `n` rows has at least one step under it.

    Raises:
        ValueError: the tail is unknown, or leaves no global batch in `n` rows.
    """
    if not isinstance(tail, str) or tail not in TAILS:
        raise ValueError(f"tail={tail!r} is unknown: it must be one of {', '.join(TAILS)}; 'pad' keeps every row")
    if n >= plan.global_size or tail == "pad" or (tail == "spread" and plan.fits(n)):
        return tail
    reason = ""
    if tail == "spread":
        each = counted(plan.shards, "shard") if plan.shards else counted(plan.active, "rank")
        reason = f", and they do not give min_per_device={plan.min_per_device} rows to each of {each}"
    rows = f"n={counted(n, 'row')}"
    raise ValueError(
        f"global_size={plan.global_size} with tail={tail!r} leaves no whole global batch in {rows}{reason}: "
        "lower global_size, give more rows, or set tail='pad'"
    )


def check_pad_weight(value: object) -> bool:
    """Return whether padded rows count; raise a ValueError for anything but 0 and 1."""
    remedy = "give 0 (padded rows do not count) or 1 (they count)"
    return bool(whole_number("pad_weight", value, minimum=0, maximum=1, remedy=remedy))


@dataclass(frozen=True)
class Pass:
    """The part of one epoch from place `start` on, as every rank sees it."""

    plan: BatchPlan
    n: int
    tail: str
    epoch: int
    start: int = 0
    carried: int = 0
    pad_counts: bool = False

    @property
    def places(self) -> int:
        """Places of the whole epoch that hold a row of their own: the carried ones and the epoch's n."""
        return self.n + self.carried

    @property
    def rest(self) -> int:
        """Rows after the last whole global batch."""
        return max(0, self.places - self.start) % self.plan.global_size

    @property
    def whole_steps(self) -> int:
        """Global batches that are whole without padding."""
        return max(0, self.places - self.start) // self.plan.global_size

    @property
    def tail_rows(self) -> int:
        """Rows of the step that the tail makes, 0 where it makes none."""
        if self.rest and self.tail == "pad":
            return self.plan.global_size
        return self.rest if self.tail == "spread" and self.rest and self.plan.fits(self.rest) else 0

    @property
    def steps(self) -> int:
        """Optimizer steps of the pass."""
        return self.whole_steps + (self.tail_rows > 0)

    @property
    def end(self) -> int:
        """Place after the last row of the last step."""
        return self.start + self.whole_steps * self.plan.global_size + self.tail_rows

    def micro_batches(self, rank: int) -> int:
        """Micro-batches of the pass on `rank`; the same number on every rank where shards are not in force."""
        tail = self.plan.micro_count(rank, self.tail_rows) if self.tail_rows else 0
        return self.whole_steps * self.plan.micro_count(rank) + tail

    def rows_drawn(self, rank: int, micro_batches: int) -> int:
        """Rows done, counted from the start of the epoch, by the steps whole within the first `micro_batches`."""
        if micro_batches == self.micro_batches(rank):
            return self.end
        return self.start + micro_batches // self.plan.micro_count(rank) * self.plan.global_size

    def facts(self) -> dict[str, Any]:
        """What must be the same on every rank, fit for JSON."""
        return asdict(self)

    def step_rows(self, step: int) -> int:
        """Rows of global batch number `step` of the pass."""
        return self.plan.global_size if step < self.whole_steps else self.tail_rows

    def share(self, rank: int, micro_batch: int) -> Share:
        """Describe micro-batch number `micro_batch` of the pass on `rank`, in O(1)."""
        count = self.plan.micro_count(rank)
        step = min(micro_batch // count, self.whole_steps)
        place, rows = micro_batch - step * count, self.step_rows(step)
        span = self.plan.micro_span(rank, place, rows)
        at = self.start + step * self.plan.global_size
        counting = rows if self.pad_counts else min(rows, self.places - at)
        return Share(
            step=self.start // self.plan.global_size + step,
            rows=len(span),
            real_rows=span.real_rows(counting),
            global_rows=counting,
            last_in_step=place == self.plan.micro_count(rank, rows) - 1,
            shards=span.held if self.plan.shards else range(0),
        )

    def rows_of(self, step: int, order: Order) -> Integers:
        """Dataset indices of the rows that count in global batch number `step` of the pass: int64, by position."""
        at = self.start + step * self.plan.global_size
        rows = self.step_rows(step)
        counting = rows if self.pad_counts else min(rows, self.places - at)
        return self._indices(order, np.arange(at, at + counting, dtype=np.int64))

    def draw(self, rank: int, order: Order) -> Iterator[list[int]]:
        """Yield the dataset indices of each micro-batch of `rank`, in order."""
        for first, stop in ((0, self.whole_steps), (self.whole_steps, self.steps)):
            if first < stop:
                yield from self._draw_alike(rank, order, range(first, stop))

    def _draw_alike(self, rank: int, order: Order, steps: range) -> Iterator[list[int]]:
        """Yield the micro-batches of `steps`, whose global batches all have the same number of rows."""
        spans = self.plan.micro_spans(rank, self.step_rows(steps.start))
        positions = np.concatenate([span.positions() for span in spans])
        ends = [0, *accumulate(map(len, spans))]
        ahead = max(1, _AHEAD // len(positions))
        for at in range(0, len(steps), ahead):
            drawn = self._indices(order, self._places(steps[at : at + ahead], positions)).tolist()
            for base in range(0, len(drawn), len(positions)):
                for first, last in pairwise(ends):
                    yield drawn[base + first : base + last]

    def _places(self, steps: range, positions: Integers) -> Integers:
        """Places of the rows at `positions` of each of `steps`, one step after the other: int64."""
        firsts = self.start + np.arange(steps.start, steps.stop, dtype=np.int64) * self.plan.global_size
        return (firsts[:, None] + positions).reshape(-1)

    def _indices(self, order: Order, places: Integers) -> Integers:
        if self.tail == "pad":
            return order.indices(self.epoch, places % self.n)
        before = places < self.carried
        if not before.any():
            return order.indices(self.epoch, places - self.carried)
        rows = np.empty_like(places)
        rows[before] = order.indices(self.epoch - 1, places[before] + (self.n - self.carried))
        rows[~before] = order.indices(self.epoch, places[~before] - self.carried)
        return rows
