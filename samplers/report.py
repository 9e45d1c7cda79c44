"""What an epoch will be, in numbers and in text, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samplers.passes import Pass, check_tail
from samplers.settings import whole_number

if TYPE_CHECKING:
    from samplers.plan import BatchPlan

__all__ = ["PlanReport", "report_plan"]


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
        micro_batches_per_step: micro-batches of every rank in a whole step.
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
        return "\n".join([*self._head(), self._tail_line()])

    def _head(self) -> list[str]:
        idle = f", {self.ranks_idle} of {self.world_size} idle" if self.ranks_idle else ""
        whole, rest = divmod(self.n, self.global_size)
        ranks = f"{self.ranks_working} rank" + "s" * (self.ranks_working > 1)
        share = _span(self.smallest_share, self.largest_share)
        micro = _span(self.smallest_micro_batch, self.largest_micro_batch)
        return [
            f"global batch     {self.global_size} rows = {ranks} x {share} rows{idle}",
            f"micro-batches    {self.micro_batches_per_step} per step on every rank, {micro} rows each",
            f"epoch            {self.n} rows = {whole} x {self.global_size} + {rest}: {self.steps_per_epoch} steps",
        ]

    def _tail_line(self) -> str:
        rest = self.n % self.global_size
        if rest == 0:
            text = "none: every global batch is whole"
        elif self.rows_padded:
            text = f"pad: the last step has {rest} rows and repeats {self.rows_padded} from the start of the order"
        elif self.rows_carried:
            text = f"carry: {self.rows_carried} rows of the first epoch open the second"
        elif self.rows_dropped:
            why = " (too few for every rank)" if self.tail == "spread" else ""
            text = f"{self.tail}: rows left out of every epoch: {self.rows_dropped}{why}"
        else:
            text = f"spread: the last step has {self.last_step_rows} rows"
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
        micro_batches_per_step=plan.micro_count(plan.global_size),
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
    """Largest and smallest micro-batch of a global batch of `rows` rows."""
    count = plan.micro_count(rows)
    return -(-plan.share_rows(0, rows) // count), plan.share_rows(plan.active - 1, rows) // count


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
