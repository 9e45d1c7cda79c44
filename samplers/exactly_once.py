"""Evaluation: every row once, on any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from samplers.agreement import compares_ranks
from samplers.dealt import DealtSampler
from samplers.orders import prepare_all, sequential_order, settled_order
from samplers.ranks import resolve_ranks
from samplers.settings import switch, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ExactlyOnceSampler"]

_AHEAD = 4_096


class ExactlyOnceSampler(DealtSampler):
    """Yields this rank's batches of an evaluation: over all ranks no row twice, none missing, nothing padded.

    Rows are dealt like cards, so ranks differ by one row at most; with fewer rows than ranks some get none and their
    iteration is empty. Ranks may therefore have different numbers of batches: a forward pass that communicates (such
    as synchronised BatchNorm in training mode) must not run under it.

    Args:
        source: a dataset with `__len__`, a number of rows, or an order (its epoch 0 is evaluated).
        batch_size: most rows of a batch; the last one of a rank may be smaller.
        rank: this rank; with `world_size` left out too, both come from torch.distributed.
        world_size: number of ranks.
        whole_batches: deal whole batches instead of rows, so that a batch holds the same rows on any number of ranks:
            batch b, of rows b * batch_size and up, goes to rank b mod world_size. Ranks then differ by one batch.

    Raises:
        ValueError: no rows at all, a batch size below 1, or a rank outside the world.

    >>> list(ExactlyOnceSampler(5, batch_size=2, rank=0, world_size=2))
    [[0, 2], [4]]
    """

    def __init__(
        self,
        source: object,
        batch_size: int = 64,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        whole_batches: bool = False,
    ) -> None:
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        self._world_size = self.world_size
        self._most_rows = whole_number("batch_size", batch_size, minimum=1, remedy="give the most rows of a batch")
        self._prepares = compares_ranks(None, left_out=rank is None, world_size=self.world_size)
        self.order = settled_order(sequential_order(source), type(self).__name__)
        self.n = len(self.order)
        self._dealt = self._most_rows if switch("whole_batches", whole_batches) else 1

    @property
    def rows(self) -> int:
        """Rows that this rank evaluates."""
        turns, rest = divmod(self.n, self._dealt * self.world_size)
        return turns * self._dealt + min(max(rest - self.rank * self._dealt, 0), self._dealt)

    def __len__(self) -> int:
        """Batches of this rank, exactly."""
        return (self.rows + self._most_rows - 1) // self._most_rows

    def __iter__(self) -> Iterator[list[int]]:
        """Evaluate from the first row on; where a torch sampler draws, rank 0 does so for all, and all must iterate."""
        if self._prepares:
            prepare_all(self.order, [0])
        step = max(1, _AHEAD // self._most_rows) * self._most_rows
        for first in range(0, self.rows, step):
            turns = np.arange(first, min(first + step, self.rows), dtype=np.int64)
            dealt, place = np.divmod(turns, self._dealt)
            rows = (dealt * self.world_size + self.rank) * self._dealt + place
            drawn = self.order.indices(0, rows).tolist()
            for start in range(0, len(drawn), self._most_rows):
                yield drawn[start : start + self._most_rows]
