"""Orders made for global batches of one size: rows of similar length, or of one group, together."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import Self

from samplers.orders.columns import as_codes, as_numbers, digest
from samplers.orders.plain import check_seed
from samplers.orders.protocol import TableOrder
from samplers.settings import whole_number

if TYPE_CHECKING:
    from samplers.permutation import Integers

__all__ = ["Bucketed", "Grouped", "SizedOrder"]

Sized = TypeVar("Sized", bound="SizedOrder")


class SizedOrder(TableOrder):
    """Base of the orders that need to know where global batches begin and end."""

    def __init__(self, seed: int, global_size: int | None) -> None:
        super().__init__(check_seed(seed))
        self.global_size = None if global_size is None else self._check(global_size)

    def _check(self, global_size: object) -> int:
        return whole_number("global_size", global_size, minimum=1, remedy="give the rows of a global batch, or None")

    def with_global_size(self, global_size: int) -> Self:
        """Return this order for global batches of `global_size` rows.

        Raises:
            ValueError: it was made for another size.
        """
        if self.global_size is None:
            made = copy.copy(self)
            made.global_size = self._check(global_size)
            return made
        if self.global_size != global_size:
            raise ValueError(
                f"global_size={global_size} of the sampler differs from global_size={self.global_size} of the order "
                f"{type(self).__name__}: leave it out of the order, which then takes that of the sampler"
            )
        return self

    def _size(self) -> int:
        if self.global_size is None:
            raise ValueError(
                f"global_size=None of the order {type(self).__name__}: give it to a sampler, which fills it in, or "
                "set global_size"
            )
        return self.global_size

    def _identity(self, name: str) -> dict[str, Any]:
        return {"order": name, "n": len(self), "seed": self.seed, "global_size": self._size()}


class Bucketed(SizedOrder):
    """Each row once per epoch, rows of similar length in one global batch, the global batches shuffled.

    Every epoch the rows are shuffled and cut into pools; each pool is sorted by length and cut into global batches.
    The rows that fill no global batch are a random choice and stand at the end.

    Args:
        lengths: one number per row, 0 or more.
        seed: any whole number.
        global_size: rows of a global batch; the sampler fills it in where None.
        pool_batches: global batches in a pool: more make lengths more alike and batches less random.

    Raises:
        ValueError: lengths that are negative or NaN, or a pool without a global batch.
    """

    def __init__(self, lengths: Any, seed: int = 0, *, global_size: int | None = None, pool_batches: int = 50) -> None:
        super().__init__(seed, global_size)
        self._lengths = as_numbers("lengths", lengths, what="a length")
        self.pool_batches = whole_number("pool_batches", pool_batches, minimum=1, remedy="50 is a good start")

    def __len__(self) -> int:
        return self._lengths.size

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._lengths.size

    def _list(self, epoch: int) -> Integers:
        n, size = len(self), self._size()
        whole = n // size * size
        rows = np.argsort(self._random("bucketed rows", epoch, n), kind="stable")
        pool = np.arange(n, dtype=np.int64) // (self.pool_batches * size)
        pool[whole:] = pool[-1] + 1
        rows = rows[np.lexsort((self._lengths[rows], pool))]
        batches = np.argsort(self._random("bucketed batches", epoch, n // size), kind="stable")
        return np.concatenate([rows[:whole].reshape(-1, size)[batches].reshape(-1), rows[whole:]])

    def identity(self) -> dict[str, Any]:
        """Name, rows, seed, sizes and a hash of the lengths."""
        return {**self._identity("Bucketed"), "pool_batches": self.pool_batches, "lengths": digest(self._lengths)}


class Grouped(SizedOrder):
    """Every global batch, and so every micro-batch, from one group, the global batches of all groups shuffled.

    Args:
        groups: the group of each row, whole numbers or texts.
        seed: any whole number.
        global_size: rows of a global batch; the sampler fills it in where None.
        leftover: rows of a group that fill no global batch: `drop` leaves a new random choice of them out every epoch,
            `repeat` fills the batch with rows of the same group that come a second time.

    Raises:
        ValueError: a group too small for a global batch with `drop`, or an unknown rule.
    """

    def __init__(self, groups: Any, seed: int = 0, *, global_size: int | None = None, leftover: str = "drop") -> None:
        if leftover not in ("drop", "repeat"):
            raise ValueError(
                f"leftover={leftover!r} is unknown: it must be 'drop' or 'repeat'; 'repeat' keeps every row"
            )
        self.leftover = leftover
        self._codes, _ = as_codes("groups", groups)
        self._sizes = np.bincount(self._codes)
        super().__init__(seed, global_size)

    def _check(self, global_size: object) -> int:
        size = super()._check(global_size)
        if self.leftover == "drop" and self._sizes.min() < size:
            raise ValueError(
                f"global_size={size} exceeds the {self._sizes.min()} rows of the smallest of {self._sizes.size} "
                "groups, which would never be drawn: lower global_size, set leftover='repeat', or leave the group out"
            )
        return size

    def __len__(self) -> int:
        return int(self._batches().sum()) * self._size()

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._codes.size

    @property
    def rows_left_out(self) -> int:
        """Rows that an epoch does not draw, because they fill no global batch of their group."""
        return int((self._sizes % self._size()).sum()) if self.leftover == "drop" else 0

    def _batches(self) -> Integers:
        """Global batches of each group."""
        return self._sizes // self._size() if self.leftover == "drop" else -(-self._sizes // self._size())

    def _list(self, epoch: int) -> Integers:
        size, batches = self._size(), self._batches()
        rows = np.lexsort((self._random("grouped rows", epoch, self._codes.size), self._codes))
        order = np.argsort(self._random("grouped batches", epoch, int(batches.sum())), kind="stable")
        group = np.repeat(np.arange(self._sizes.size), batches)[order]
        turn = (np.arange(order.size) - np.repeat(np.cumsum(batches) - batches, batches))[order]
        places = (turn[:, None] * size + np.arange(size)) % self._sizes[group][:, None]
        return rows[places + (np.cumsum(self._sizes) - self._sizes)[group][:, None]].reshape(-1)

    def identity(self) -> dict[str, Any]:
        """Name, rows, seed, global size, rule and a hash of the groups."""
        return {**self._identity("Grouped"), "leftover": self.leftover, "groups": digest(self._codes)}
