"""Each row once per epoch: as it stands, or shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplers.orders.protocol import TableOrder
from samplers.permutation import SMALL, Integers, feistel, small_permutation, words_from
from samplers.settings import whole_number

__all__ = ["Sequential", "Shuffled", "check_seed"]


class Sequential:
    """Rows 0 to n - 1 as they stand, every epoch.

    >>> Sequential(5).indices(0, np.array([0, 4])).tolist()
    [0, 4]
    """

    def __init__(self, n: int) -> None:
        self._n = _check_rows(n)

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:  # noqa: ARG002 - the same order every epoch
        """Return `positions` themselves."""
        return np.asarray(positions, dtype=np.int64)

    def identity(self) -> dict[str, Any]:
        """Name and number of rows."""
        return {"order": "Sequential", "n": self._n}


class Shuffled(TableOrder):
    """A new shuffle of rows 0 to n - 1 every epoch, in O(1) memory for large n and O(1) to enter anywhere.

    Args:
        n: rows of the dataset, 1 <= n <= 2**62.
        seed: any whole number, also a negative one or one beyond 64 bits. Seed and epoch are hashed together: two
            seeds never share an order because their epochs differ.

    >>> order = Shuffled(1_000_000_000, seed=7)
    >>> bool((order.indices(3, np.array([900_000_000])) < len(order)).all())
    True
    """

    def __init__(self, n: int, seed: int = 0) -> None:
        super().__init__(check_seed(seed))
        self._n = _check_rows(n)

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch's shuffle."""
        places = np.asarray(positions, dtype=np.int64)
        if self._n < SMALL:
            return super().indices(epoch, places)
        return feistel(places, self._n, words_from("shuffle", self.seed, epoch, count=8))

    def _list(self, epoch: int) -> Integers:
        return small_permutation(self._n, words_from("shuffle", self.seed, epoch, count=2))

    def identity(self) -> dict[str, Any]:
        """Name, number of rows and seed."""
        return {"order": "Shuffled", "n": self._n, "seed": self.seed}


def check_seed(seed: object) -> int:
    """Return `seed` as an int; raise a ValueError where it is no whole number."""
    return whole_number("seed", seed, remedy="give any whole number")


def _check_rows(n: object) -> int:
    return whole_number("n", n, minimum=1, remedy="give a dataset with at least one row")
