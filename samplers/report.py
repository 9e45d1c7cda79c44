"""What an epoch will be, in numbers and in text, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from samplers.passes import Pass, check_tail
from samplers.settings import whole_number
from samplers.words import counted

if TYPE_CHECKING:
    from samplers.plan import BatchPlan

__all__ = ["PlanReport", "report_plan"]

_LISTED = 8
"""Most numbers that are listed one by one."""


@dataclass(frozen=True)
class PlanReport:
    """An epoch in numbers; `str()` shows the arithmetic.

    Attributes:
        n: rows of the dataset.
        tail: what happens to rows beyond the last whole global batch.
        global_size: rows of one optimizer step.
        world_size: ranks there are.
        ranks_working: ranks that take rows.
        ranks_idle: ranks that take none.
        steps_per_epoch: optimizer steps of an epoch; with tail `carry`, of the first one.
        shards: shards of a global batch, 0 where shards are not in force.
        most_shards: most shards of a rank.
        fewest_shards: fewest shards of a rank that works.
        micro_batches_per_step: micro-batches of a rank in a whole step; with shards, the most of any rank.
        largest_share: most rows of a rank in a step.
        smallest_share: fewest rows of a rank in a whole step.
        largest_micro_batch: most rows of a micro-batch.
        smallest_micro_batch: fewest rows of a micro-batch, in any step of the epoch.
        last_step_rows: rows of the last step, padded ones included.
        rows_dropped: rows that an epoch leaves out.
        rows_padded: rows that an epoch repeats to fill its last step.
        rows_carried: rows of the first epoch that open the second.
    """

    n: int
    tail: str
    global_size: int
    world_size: int
    ranks_working: int
    ranks_idle: int
    steps_per_epoch: int
    shards: int
    most_shards: int
    fewest_shards: int
    micro_batches_per_step: int
    largest_share: int
    smallest_share: int
    largest_micro_batch: int
    smallest_micro_batch: int
    last_step_rows: int
    rows_dropped: int
    rows_padded: int
    rows_carried: int

    def steps(self, epochs: int) -> int:
        """Optimizer steps of the first `epochs` epochs."""
        count = whole_number("epochs", epochs, minimum=0, remedy="give the epochs to train")
        if self.tail == "carry":
            return self.n * count // self.global_size
        return self.steps_per_epoch * count

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._shard_lines(), *self._epoch_lines()])

    def _head(self) -> list[str]:
        idle = f", {self.ranks_idle} of {self.world_size} idle" if self.ranks_idle else ""
        ranks = counted(self.ranks_working, "rank")
        share = _rows(self.smallest_share, self.largest_share)
        micro = _rows(self.smallest_micro_batch, self.largest_micro_batch)
        return [
            f"global batch     {counted(self.global_size, 'row')} = {ranks} x {share}{idle}",
            f"micro-batches    {self._micro_counts()}, {micro} each",
        ]

    def _micro_counts(self) -> str:
        most = self.micro_batches_per_step
        # Single shards that the ranks do not divide are the one case in which ranks differ.
        if self.shards and self.fewest_shards < most:
            return f"{self.fewest_shards} or {most} per step, by rank"
        return f"{most} per step on every rank"

    def _shard_lines(self) -> list[str]:
        """Which numbers of devices divide the shards, and what one that does not costs."""
        if not self.shards:
            return []
        rows = _rows(self.global_size // self.shards, -(-self.global_size // self.shards))
        divide = f"{_listed(_divisors(self.shards))} devices divide them evenly" if self.shards > 1 else "for 1 device"
        even = f"shards           {self.shards} x {rows}: {divide}"
        if self.most_shards == self.fewest_shards:
            return [even]
        longer = (self.most_shards * self.ranks_working / self.shards - 1) * 100
        cost = (
            f"                 {self.ranks_working} devices take {self._shards_of_ranks()}: a step lasts as long as "
            f"{self.most_shards} shards, {longer:.3g} % more than an even split"
        )
        return [even, cost]

    def _shards_of_ranks(self) -> str:
        if self.ranks_working > _LISTED:
            return f"{self.fewest_shards} or {self.most_shards}"
        larger = self.shards % self.ranks_working
        counts = [self.most_shards] * larger + [self.fewest_shards] * (self.ranks_working - larger)
        return ", ".join(map(str, counts))

    def _epoch_lines(self) -> list[str]:
        whole, rest = divmod(self.n, self.global_size)
        steps = counted(self.steps_per_epoch, "step")
        return [
            f"epoch            {counted(self.n, 'row')} = {whole} x {self.global_size} + {rest}: {steps}",
            self._tail_line(),
        ]

    def _tail_line(self) -> str:
        rest = self.n % self.global_size
        if rest == 0:
            text = "none: every global batch is whole"
        elif self.rows_padded:
            rows = counted(rest, "row")
            text = f"pad: the last step has {rows} and repeats {self.rows_padded} from the start of the order"
        elif self.rows_carried:
            text = f"carry: rows of the first epoch that open the second: {self.rows_carried}"
        elif self.rows_dropped:
            each = "shard" if self.shards else "rank"
            why = f" (too few for every {each})" if self.tail == "spread" else ""
            text = f"{self.tail}: rows left out of every epoch: {self.rows_dropped}{why}"
        else:
            text = f"spread: the last step has {counted(self.last_step_rows, 'row')}"
        return f"tail             {text}"


def report_plan(plan: BatchPlan, n: int, tail: str) -> PlanReport:
    """Describe an epoch of `n` rows under `plan`.

    Raises:
        ValueError: the tail is unknown or leaves no step in `n` rows.
    """
    rows = whole_number("n", n, minimum=1, remedy="give a dataset with at least one row")
    epoch = Pass(plan, rows, check_tail(plan, rows, tail), epoch=0)
    last = epoch.tail_rows or plan.global_size
    kinds = {plan.global_size} if epoch.whole_steps else set()
    sizes = [size for kind in kinds | {last} for size in _micro_sizes(plan, kind)]
    lost = epoch.rest if epoch.tail_rows == 0 else 0
    return PlanReport(
        n=rows,
        tail=tail,
        global_size=plan.global_size,
        world_size=plan.world_size,
        ranks_working=plan.active,
        ranks_idle=plan.idle,
        steps_per_epoch=epoch.steps,
        shards=plan.shards,
        most_shards=len(plan.shard_range(0)),
        fewest_shards=len(plan.shard_range(plan.active - 1)),
        micro_batches_per_step=plan.micro_count(0),
        largest_share=plan.share_rows(0),
        smallest_share=plan.share_rows(plan.active - 1),
        largest_micro_batch=max(sizes),
        smallest_micro_batch=min(sizes),
        last_step_rows=last,
        rows_dropped=0 if tail == "carry" else lost,
        rows_padded=max(0, epoch.end - rows),
        rows_carried=lost if tail == "carry" else 0,
    )


def _micro_sizes(plan: BatchPlan, rows: int) -> tuple[int, int]:
    """Largest and smallest micro-batch of a global batch of `rows` rows: the first of all, and the last."""
    last = plan.active - 1
    return len(plan.micro_span(0, 0, rows)), len(plan.micro_span(last, plan.micro_count(last, rows) - 1, rows))


def _divisors(number: int) -> list[int]:
    """Numbers that divide `number`, ascending; of one beyond 2**32 perhaps not all."""
    small = [other for other in range(1, min(isqrt(number), 1 << 16) + 1) if number % other == 0]
    return sorted({*small, *(number // other for other in small)})


def _listed(numbers: list[int]) -> str:
    """Two numbers or more as text, the last and at most so many of the others."""
    shown = numbers[:-1][: _LISTED - 1]
    more = ", ..." if len(shown) < len(numbers) - 1 else ""
    return f"{', '.join(map(str, shown))}{more} or {numbers[-1]}"


def _rows(low: int, high: int) -> str:
    return counted(low, "row") if low == high else f"{low} to {high} rows"
