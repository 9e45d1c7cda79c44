"""How the rows of a global batch are dealt like cards, and the part of them that a micro-batch holds.

Position p of a global batch belongs to hand p mod hands. The hands are the ranks that work, or the shards where shards
are in force. Everything here costs the same for any number of hands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from samplers.permutation import Integers

__all__ = ["Span", "dealt", "even_part"]


def dealt(rows: int, hands: int, held: range) -> int:
    """Rows that the neighbouring hands `held` get when `rows` rows are dealt to `hands` hands.

    >>> [dealt(10, 4, range(hand, hand + 1)) for hand in range(4)], dealt(10, 4, range(1, 3))
    ([3, 3, 2, 2], 5)
    """
    turns, rest = divmod(rows, hands)
    return turns * len(held) + min(max(rest - held.start, 0), len(held))


def even_part(count: int, parts: int, part: int) -> range:
    """Part number `part` of 0 <= x < `count` in `parts` parts that differ by one at most, larger ones first.

    >>> [even_part(8, 3, part) for part in range(3)]
    [range(0, 3), range(3, 6), range(6, 8)]
    """
    small, larger = divmod(count, parts)
    start = part * small + min(part, larger)
    return range(start, start + small + (part < larger))


@dataclass(frozen=True)
class Span:
    """The rows of a micro-batch: those at [start, stop) among the rows of some neighbouring hands.

    The rows of these hands are counted by position, so row t of them belongs to `held[t % len(held)]`.

    Attributes:
        hands: what the global batch is dealt to.
        held: neighbouring hands.
        start: first of their rows that is in the micro-batch.
        stop: the one after the last.

    >>> Span(hands=4, held=range(1, 3), start=0, stop=5).positions().tolist()
    [1, 2, 5, 6, 9]
    """

    hands: int
    held: range
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def positions(self) -> Integers:
        """Positions of the rows within the global batch, ascending: int64, shape (rows,)."""
        rows = np.arange(self.start, self.stop, dtype=np.int64)
        return rows // len(self.held) * self.hands + rows % len(self.held) + self.held.start

    def real_rows(self, counting: int) -> int:
        """How many of the rows lie among the first `counting` positions of the global batch."""
        return min(max(dealt(counting, self.hands, self.held) - self.start, 0), len(self))
