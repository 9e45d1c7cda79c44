"""The global batches of one pass through a stream, whose end the ranks agree on."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samplers.agreement import gathered, least
from samplers.parts import ENDED
from samplers.passes import Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samplers.parts import read_parts
    from samplers.plan import BatchPlan

__all__ = ["Step", "StreamPass"]

_AHEAD = 16
"""Most steps for which ranks agree at once that every one of them has its rows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """This rank's rows of one global batch, and how many it should have."""

    number: int
    rows: list[Any]
    size: int

    @property
    def full(self) -> bool:
        """Whether no row is missing."""
        return len(self.rows) == self.size


class StreamPass:
    """One rank's steps from row `first_row` of an epoch on.

    Row number t of the stream belongs to rank t mod world size, so where the ranks do not divide the global batch, each
    step is dealt from another rank on, and larger shares go round.
    """

    def __init__(self, plan: BatchPlan, rank: int, tail: str, first_row: int) -> None:
        self.plan = plan
        self.rank = rank
        self.tail = tail
        self.first_row = first_row
        self._padded: dict[int, tuple[int, int]] = {}  # of padded steps: rows that count, on this rank and over all

    def steps(self, read: read_parts, parts: int) -> Iterator[Step]:
        """Yield the steps, each whole, padded where the tail says so; every rank must go through them."""
        number, wanted = 0, 1
        spare: list[Any] = []
        ahead: deque[Step] = deque()
        while not ahead:
            ahead.extend(self._read(read, parts, number + more) for more in range(wanted))
            spare = spare or ahead[0].rows[:]
            agreed = next((place for place, step in enumerate(ahead) if not step.full), wanted)
            if self.plan.world_size > 1:
                agreed = least(agreed)
            for _ in range(agreed):
                yield ahead.popleft()
            number += agreed
            # The first step comes at once; later the ranks talk less often. One rank needs no one's word.
            wanted = min(2 * wanted, _AHEAD) if self.plan.world_size > 1 else 1
        while self.tail == "pad":
            step = ahead.popleft() if ahead else self._read(read, parts, number)
            number += 1
            spare = self._agree_on_rest(step, spare)
            if not spare:
                return
            missing = step.size - len(step.rows)
            yield Step(step.number, step.rows + (spare * -(-missing // len(spare)))[:missing], step.size)
        left = sum(len(step.rows) for step in ahead)
        _log.info("the stream ended; rows that rank %d has read and leaves out: %d", self.rank, left)

    def _read(self, read: read_parts, parts: int, number: int) -> Step:
        dealt = self._dealt(number)
        size = self.plan.share_rows(dealt)
        first = self.first_row + number * self.plan.global_size + dealt
        turns = range(first, first + size * self.plan.world_size, self.plan.world_size)
        return Step(number, [row for turn in turns if (row := read.take(turn % parts)) is not ENDED], size)

    def _dealt(self, step: int) -> int:
        """Which hand of the global batch this rank gets."""
        return (self.rank - self.first_row - step * self.plan.global_size) % self.plan.world_size

    def _agree_on_rest(self, step: Step, spare: list[Any]) -> list[Any]:
        """Note the rows of a padded step that count; return rows to pad with, none where no rank has a row left."""
        mine = (len(step.rows), (step.rows + spare)[:1])
        everyone = gathered(mine) if self.plan.world_size > 1 else [mine]
        total = sum(rows for rows, _ in everyone)
        if total == 0:
            return []
        self._padded[step.number] = (len(step.rows), total)
        # A rank whose parts held no row at all repeats one of another rank.
        return spare or step.rows or next(rows for _, rows in everyone if rows)

    def micro_batches(self, step: Step) -> Iterator[list[Any]]:
        """Yield the rows of each micro-batch of a step."""
        for span in self.plan.micro_spans(self._dealt(step.number)):
            yield step.rows[span.start : span.stop]

    def share(self, micro_batch: int) -> Share:
        """Describe a micro-batch that was drawn, in O(1)."""
        size = self.plan.global_size
        count = self.plan.micro_count(self.rank)
        step, place = divmod(micro_batch, count)
        real, total = self._padded.get(step, (size, size))
        span = self.plan.micro_span(self._dealt(step), place)
        return Share(
            step=self.first_row // size + step,
            rows=len(span),
            real_rows=min(max(real - span.start, 0), len(span)),
            global_rows=total,
            last_in_step=place == count - 1,
        )
