"""Orders made of orders: each row several times, some rows only, several datasets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from samplers.orders.columns import as_numbers, as_rows, digest
from samplers.orders.plain import Sequential, Shuffled, check_seed
from samplers.orders.protocol import Order
from samplers.orders.sources import shuffled_order
from samplers.permutation import Integers, words_from
from samplers.settings import switch, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mixture", "Repeated", "Subset"]

_SCALE_BITS = 31
_SCALE = 1 << _SCALE_BITS


class Repeated:
    """Each row of an order several times in a row, so that its copies stand in one global batch, on different ranks.

    Repeated augmentation (Hoffer and others, "Augment your batch", 2020).

    Args:
        source: a dataset, a number of rows, or an order.
        times: copies of each row.
        seed: of the shuffle where the source is no order, 0 where None.
        num_rows: positions of an epoch, `times` as many as in the source where None.
        numbered: copy k of row i gets the index k * len(source) + i, which `SeededRows` takes for copy k; for an order
            over all rows of a dataset. Else all copies have the index of the row.

    >>> Repeated(Sequential(3), 2).indices(0, np.arange(6)).tolist()
    [0, 0, 1, 1, 2, 2]
    """

    def __init__(
        self,
        source: object,
        times: int,
        *,
        seed: int | None = None,
        num_rows: int | None = None,
        numbered: bool = False,
    ) -> None:
        self.order: Order = shuffled_order(source, seed)
        self.times = whole_number("times", times, minimum=1, remedy="give the copies of each row")
        most = self.times * len(self.order)
        self._n = most if num_rows is None else whole_number("num_rows", num_rows, minimum=1)
        if self._n > most:
            raise ValueError(f"num_rows={self._n} exceeds times={times} x {len(self.order)} rows: lower it")
        self.numbered = switch("numbered", numbered)

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        rows = self.order.indices(epoch, positions // self.times)
        return rows + positions % self.times * len(self.order) if self.numbered else rows

    def identity(self) -> dict[str, Any]:
        """Name, positions, copies and the identity of the order."""
        return {
            "order": "Repeated",
            "n": self._n,
            "times": self.times,
            "numbered": self.numbered,
            "of": self.order.identity(),
        }


class Subset:
    """Some rows of a dataset, each as often per epoch as it is listed.

    Args:
        indices: dataset indices.
        seed: any whole number.
        shuffle: a new shuffle every epoch, or as they are listed.

    Raises:
        ValueError: no indices, or negative ones.

    >>> Subset([7, 3, 5], shuffle=False).indices(0, np.arange(3)).tolist()
    [7, 3, 5]
    """

    def __init__(self, indices: Any, seed: int = 0, *, shuffle: bool = True) -> None:
        self._rows = as_rows("indices", indices)
        self.seed = check_seed(seed)
        shuffled = switch("shuffle", shuffle)
        self._order: Order = Shuffled(self._rows.size, self.seed) if shuffled else Sequential(self._rows.size)

    def __len__(self) -> int:
        return self._rows.size

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        return self._rows[self._order.indices(epoch, positions)]

    def identity(self) -> dict[str, Any]:
        """Name, a hash of the indices and the identity of the shuffle."""
        return {"order": "Subset", "n": len(self), "indices": digest(self._rows), "of": self._order.identity()}


class Mixture:
    """Several datasets in given proportions, as indices into their `ConcatDataset`.

    Among any number of first positions each source has its proportion but for less than one row per source. A source is
    drawn through to its end before it starts again with a new order, also over epochs, so none of its rows is seen
    twice before all were seen. O(1) memory and O(1) to enter anywhere, where the sources are.

    Args:
        sources: datasets, numbers of rows, or orders.
        proportions: one number per source, more than 0; they need not sum to 1 and are kept to 2**-31.
        seed: any whole number; of the sources that are no orders.
        num_rows: positions of an epoch, as many as rows in all sources where None.
        sizes: rows of each dataset in the `ConcatDataset`; for orders of another length (`Subset`).

    Raises:
        ValueError: no sources, as many proportions or sizes as not sources, or proportions that are 0, negative or NaN.
    """

    def __init__(
        self,
        sources: Sequence[object],
        proportions: Any,
        seed: int = 0,
        *,
        num_rows: int | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.seed = check_seed(seed)
        self.orders = [_seeded_order(source, self.seed, place) for place, source in enumerate(sources)]
        self._splits = _splits(as_numbers("proportions", proportions, what="a proportion"), len(self.orders))
        lengths = [len(order) for order in self.orders]
        known = lengths if sizes is None else [whole_number("sizes", size, minimum=1) for size in sizes]
        if len(known) != len(lengths):
            raise ValueError(f"sizes has {len(known)} values for {len(lengths)} sources: give one for each")
        self._offsets = np.cumsum([0, *known[:-1]])
        self._n = sum(lengths) if num_rows is None else whole_number("num_rows", num_rows, minimum=1)
        self._per_epoch = [int(count[0]) for count in self._deal(np.array([self._n], dtype=np.int64))]

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        places = np.asarray(positions, dtype=np.int64)
        rows = np.empty(places.shape, dtype=np.int64)
        after = self._deal(places + 1)
        for number, (order, before) in enumerate(zip(self.orders, self._deal(places), strict=True)):
            mine = np.flatnonzero(after[number] > before)
            turns = before[mine] + epoch * self._per_epoch[number]
            rows[mine] = _endless(order, turns) + self._offsets[number]
        return rows

    def _deal(self, counts: Integers) -> list[Integers]:
        """For each source, how many of the first `counts` positions are its own."""
        dealt = []
        left = counts
        for share in self._splits:
            # share / 2**31 of what is left, rounded up; cut in two so that it fits 64 bits.
            high, low = left >> _SCALE_BITS, left & (_SCALE - 1)
            mine = high * share + -((-low * share) >> _SCALE_BITS)
            dealt.append(mine)
            left = left - mine
        return dealt

    def identity(self) -> dict[str, Any]:
        """Name, positions, proportions and the identities of the sources."""
        return {
            "order": "Mixture",
            "n": self._n,
            "proportions": list(self._splits),
            "of": [order.identity() for order in self.orders],
            "offsets": self._offsets.tolist(),
        }


def _seeded_order(source: object, seed: int, place: int) -> Order:
    if isinstance(source, Order):
        return source
    return shuffled_order(source, int(words_from("mixture", seed, place)[0]))


def _splits(proportions: Any, sources: int) -> tuple[int, ...]:
    """Share of each source among itself and those after it, in units of 2**-31; the last one takes all that is left."""
    if sources == 0 or proportions.size != sources:
        raise ValueError(f"proportions has {proportions.size} values for {sources} sources: give one for each")
    if (proportions == 0).any():
        place = int(np.flatnonzero(proportions == 0)[0])
        raise ValueError(f"proportions[{place}]=0.0: a proportion must be more than 0; leave the source out")
    left = np.cumsum(proportions[::-1])[::-1]
    return tuple(min(_SCALE, max(1, round(share * _SCALE))) for share in (proportions / left).tolist())


def _endless(order: Order, turns: Integers) -> Integers:
    """Rows at `turns` of an order that starts again, with its next epoch, whenever it ends."""
    epochs, positions = np.divmod(turns, len(order))
    rows = np.empty(turns.shape, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        mine = epochs == epoch
        rows[mine] = order.indices(epoch, positions[mine])
    return rows
