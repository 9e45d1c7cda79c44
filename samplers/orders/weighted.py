"""Rows drawn by weight, and classes drawn equally often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from samplers.orders.columns import as_codes, as_numbers, digest
from samplers.orders.plain import check_seed
from samplers.orders.protocol import TableOrder
from samplers.permutation import Integers, Words, hash_words, words_from
from samplers.settings import switch, whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Balanced", "Weighted", "alias_table"]


class Weighted(TableOrder):
    """Rows drawn with probability proportional to their weights.

    With replacement every position is an independent draw from an alias table (Walker, 1977): O(1) to enter anywhere.
    Without, rows are drawn one after the other from those that are left (Efraimidis and Spirakis, "Weighted random
    sampling with a reservoir", 2006), no row twice in an epoch.

    Args:
        weights: one number per row, 0 or more, not all 0; a row of weight 0 is never drawn.
        seed: any whole number.
        replacement: whether a row may come several times in an epoch.
        num_rows: positions of an epoch; where None, as many as rows with replacement, as rows of a weight without.

    Raises:
        ValueError: weights that are negative, NaN or all zero, or more positions than rows without replacement.

    >>> order = Weighted([1, 0, 3], seed=1, num_rows=1000)
    >>> np.bincount(order.indices(0, np.arange(1000)), minlength=3).tolist()
    [254, 0, 746]
    """

    def __init__(self, weights: Any, seed: int = 0, *, replacement: bool = True, num_rows: int | None = None) -> None:
        super().__init__(check_seed(seed))
        self._weights = as_numbers("weights", weights, what="a weight")
        drawable = int(np.count_nonzero(self._weights))
        if drawable == 0:
            raise ValueError(f"weights are 0 for all {self._weights.size} rows: give at least one row a weight")
        self.replacement = switch("replacement", replacement)
        default = self._weights.size if replacement else drawable
        self._n = _check_num_rows(num_rows, default)
        if not replacement and self._n > drawable:
            raise ValueError(
                f"num_rows={self._n} exceeds the number of rows that have a weight, {drawable}, and "
                "replacement=False draws each once: lower num_rows, or set replacement=True"
            )
        self._alias = alias_table(self._weights) if replacement else None

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._weights.size

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows drawn at `positions` of this epoch."""
        if self._alias is None:
            return super().indices(epoch, positions)
        stay, other = self._alias
        keys = words_from("weighted", self.seed, epoch, count=3)
        words = hash_words(np.asarray(positions, dtype=np.int64).astype(np.uint64), keys[0])
        bucket = (hash_words(words, keys[1]) % np.uint64(stay.size)).astype(np.int64)
        return np.where(_uniform(hash_words(words, keys[2])) < stay[bucket], bucket, other[bucket])

    def _list(self, epoch: int) -> Integers:
        """The rows with the smallest exponential waiting times at rates equal to their weights, earliest first."""
        rows = np.flatnonzero(self._weights)
        uniform = _uniform(self._random("weighted", epoch, self._weights.size))[rows]
        # Of logarithms, since a quotient by the smallest weights would be infinite; that of a draw of 0 comes first.
        with np.errstate(divide="ignore"):
            waiting = np.log(-np.log1p(-uniform)) - np.log(self._weights[rows])
        return rows[np.argsort(waiting, kind="stable")[: self._n]]

    def identity(self) -> dict[str, Any]:
        """Name, positions, seed, replacement and a hash of the weights."""
        return {
            "order": "Weighted",
            "n": self._n,
            "seed": self.seed,
            "replacement": self.replacement,
            "weights": digest(self._weights),
        }


class Balanced(TableOrder):
    """Every class equally often, whatever its size: each run of as many positions as classes has every class once.

    The rows of a class come in a new shuffle every epoch, and again from its start where the class is small.

    Args:
        labels: one label per row, whole numbers or texts.
        seed: any whole number.
        num_rows: positions of an epoch, as many as rows where None.

    Raises:
        ValueError: no labels, or labels that are neither whole numbers nor texts.
    """

    def __init__(self, labels: Any, seed: int = 0, *, num_rows: int | None = None) -> None:
        super().__init__(check_seed(seed))
        self._codes, self._classes = as_codes("labels", labels)
        self._n = _check_num_rows(num_rows, self._codes.size)

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._codes.size

    def _list(self, epoch: int) -> Integers:
        rows = np.lexsort((self._random("balanced rows", epoch, self._codes.size), self._codes))
        sizes = np.bincount(self._codes)
        rounds = -(-self._n // self._classes)
        words = self._random("balanced classes", epoch, rounds * self._classes).reshape(rounds, self._classes)
        classes = np.argsort(words, axis=1)
        turn = np.arange(rounds, dtype=np.int64)[:, None]
        return rows[(np.cumsum(sizes) - sizes)[classes] + turn % sizes[classes]].reshape(-1)[: self._n]

    def identity(self) -> dict[str, Any]:
        """Name, positions, seed and a hash of the labels."""
        return {"order": "Balanced", "n": self._n, "seed": self.seed, "labels": digest(self._codes)}


def alias_table(weights: Floats) -> tuple[Floats, Integers]:
    """Return (stay, other): bucket k, chosen uniformly, gives row k with probability stay[k], else row other[k].

    The sweep of Hübschle-Schneider and Sanders ("Parallel weighted random sampling", 2019) in closed form: rows below
    the mean take what they lack from rows above it, in turn; a row above that has given away too much takes from the
    next.
    """
    share = weights / weights.max()
    share *= share.size / share.sum()
    heavy = share >= 1
    heavy[share.argmax()] = True
    light_rows, heavy_rows = np.flatnonzero(~heavy), np.flatnonzero(heavy)
    lacking, spare = np.cumsum(1 - share[light_rows]), np.cumsum(share[heavy_rows] - 1)
    stay, other = np.ones(share.size), np.arange(share.size, dtype=np.int64)
    last = heavy_rows.size - 1
    before = np.concatenate([[0.0], lacking])
    stay[light_rows] = share[light_rows]
    other[light_rows] = heavy_rows[np.minimum(np.searchsorted(spare, before[:-1], side="right"), last)]
    crossing = np.searchsorted(lacking, spare, side="right")
    # A heavy row has given away too much if a light one began to take before it was spent, and took beyond that.
    overdrawn = (crossing < lacking.size) & (before[crossing] < spare) & (np.arange(heavy_rows.size) < last)
    given = np.flatnonzero(overdrawn)
    stay[heavy_rows[given]] = np.clip(1 - (lacking[crossing[given]] - spare[given]), 0, 1)
    other[heavy_rows[given]] = heavy_rows[given + 1]
    return stay, other


def _uniform(words: Words) -> Floats:
    """Words as float64 within [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _check_num_rows(num_rows: object, default: int) -> int:
    if num_rows is None:
        return default
    return whole_number("num_rows", num_rows, minimum=1, remedy="give the positions of an epoch, or None")
