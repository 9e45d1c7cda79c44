"""Evaluation: every row once, on any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from samplers.agreement import compares_ranks
from samplers.dealt import DealtSampler
from samplers.orders import prepare_all, sequential_order, settled_order
from samplers.ranks import resolve_ranks
from samplers.settings import whole_number

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

    Raises:
        ValueError: no rows at all, a batch size below 1, or a rank outside the world.

    >>> list(ExactlyOnceSampler(5, batch_size=2, rank=0, world_size=2))
    [[0, 2], [4]]
    """

    def __init__(
        self, source: object, batch_size: int = 64, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        self._world_size = self.world_size
        self._most_rows = whole_number("batch_size", batch_size, minimum=1, remedy="give the most rows of a batch")
        self._prepares = compares_ranks(None, left_out=rank is None, world_size=self.world_size)
        self.order = settled_order(sequential_order(source), type(self).__name__)
        self.n = len(self.order)

    @property
    def rows(self) -> int:
        """Rows that this rank evaluates."""
        return (self.n - self.rank + self.world_size - 1) // self.world_size

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
            drawn = self.order.indices(0, turns * self.world_size + self.rank).tolist()
            for start in range(0, len(drawn), self._most_rows):
                yield drawn[start : start + self._most_rows]
