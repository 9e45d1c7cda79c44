"""Orders: pure functions from (epoch, positions) to the rows of a dataset."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from samplers.permutation import SMALL, Integers, feistel, small_permutation, words_from
from samplers.settings import whole_number

__all__ = ["Order", "Sequential", "Shuffled"]


@runtime_checkable
class Order(Protocol):
    """What an order promises.

    It is pure (the same arguments give the same rows, whatever was asked before), safe to ask from several threads,
    picklable, and knows nothing of ranks.
    """

    def __len__(self) -> int:
        """Positions of an epoch; at least 1."""
        ...

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the dataset index at each of `positions` (int64, each within [0, len)) of an epoch, as int64."""
        ...

    def identity(self) -> dict[str, object]:
        """What tells this order from another, small and fit for JSON; it goes into the state of a sampler."""
        ...


class Sequential:
    """Rows 0 to n - 1 as they stand, every epoch.

    >>> Sequential(5).indices(0, np.array([0, 4])).tolist()
    [0, 4]
    """

    def __init__(self, n: int) -> None:
        self._n = _rows(n)

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:  # noqa: ARG002 - the same order every epoch
        """Return `positions` themselves."""
        return np.asarray(positions, dtype=np.int64)

    def identity(self) -> dict[str, object]:
        """Name and number of rows."""
        return {"order": "Sequential", "n": self._n}


class Shuffled:
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
        self._n = _rows(n)
        self.seed = whole_number("seed", seed, remedy="give any whole number")
        # One slot, replaced as a whole: a reader in another thread sees the old pair or the new one, never a mixture.
        self._kept: tuple[int, Integers] | None = None

    def __len__(self) -> int:
        return self._n

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": None}

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch's shuffle."""
        places = np.asarray(positions, dtype=np.int64)
        if self._n < SMALL:
            return self._permutation(epoch)[places]
        return feistel(places, self._n, words_from("shuffle", self.seed, epoch, count=8))

    def _permutation(self, epoch: int) -> Integers:
        kept = self._kept
        if kept is None or kept[0] != epoch:
            kept = (epoch, small_permutation(self._n, words_from("shuffle", self.seed, epoch, count=2)))
            self._kept = kept
        return kept[1]

    def identity(self) -> dict[str, object]:
        """Name, number of rows and seed."""
        return {"order": "Shuffled", "n": self._n, "seed": self.seed}


def _rows(n: object) -> int:
    return whole_number("n", n, minimum=1, remedy="give a dataset with at least one row")
