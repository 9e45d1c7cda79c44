"""Orders made of orders: each row several times, some rows only, several datasets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from samplers.orders.columns import as_numbers, as_rows, digest
from samplers.orders.plain import Sequential, Shuffled, check_seed
from samplers.orders.protocol import Order, prepare_all
from samplers.orders.sources import settled_order, shuffled_order
from samplers.permutation import Integers, words_from
from samplers.settings import SettingTypeError, switch, whole_number

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
        numbered: copy k of row i gets the index k * size + i, which `SeededRows` takes for copy k. Else all copies have
            the index of the row.
        size: rows of the dataset, for `numbered`; where None, as the source says.

    Raises:
        ValueError: more positions than copies, or `numbered` over an order (`Subset`, a torch sampler) that does not
            say how many rows its dataset has; on drawing, a row beyond `size`.

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
        size: int | None = None,
    ) -> None:
        self.order: Order = settled_order(shuffled_order(source, seed), "Repeated")
        self.times = whole_number("times", times, minimum=1, remedy="give the copies of each row")
        most = self.times * len(self.order)
        self._n = _positions(num_rows, most)
        if self._n > most:
            raise ValueError(f"num_rows={self._n} exceeds times={times} x {len(self.order)} rows: lower it")
        self.numbered = switch("numbered", numbered)
        self._size = _dataset_rows(self.order, size, "size") if numbered or size is not None else None

    @property
    def seed(self) -> int | None:
        """Seed of the order inside, None where it has none."""
        return getattr(self.order, "seed", None)

    @property
    def dataset_rows(self) -> int | None:
        """Rows of the dataset, numbered copies included; None where it is not known."""
        rows = getattr(self.order, "dataset_rows", None) if self._size is None else self._size
        return rows * self.times if self.numbered and rows is not None else rows

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        rows = self.order.indices(epoch, positions // self.times)
        if self._size is None:
            return rows
        _check_within(rows, self._size, "size")
        return rows + positions % self.times * self._size if self.numbered else rows

    def prepare(self, epochs: Sequence[int]) -> None:
        """Have the order inside prepare these epochs."""
        prepare_all(self.order, epochs)

    def identity(self) -> dict[str, Any]:
        """Name, positions, copies and the identity of the order."""
        return {
            "order": "Repeated",
            "n": self._n,
            "times": self.times,
            "numbered": self.numbered,
            "size": self._size,
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

    @property
    def least_rows(self) -> int:
        """Rows that the dataset must have; how many it has is not known."""
        return int(self._rows.max()) + 1

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        return self._rows[self._order.indices(epoch, positions)]

    def identity(self) -> dict[str, Any]:
        """Name, a hash of the indices and the identity of the shuffle."""
        return {"order": "Subset", "n": len(self), "indices": digest(self._rows), "of": self._order.identity()}


class Mixture:
    """Several datasets in given proportions, as indices into their `ConcatDataset`.

    Among any number of first positions each source has its proportion, but for fewer rows than there are sources. A
    source is drawn through to its end before it starts again with a new order, also over epochs, so none of its rows is
    seen twice before all were seen. O(1) memory and O(1) to enter anywhere, where the sources are.

    Args:
        sources: datasets, numbers of rows, or orders.
        proportions: one number per source, more than 0; they need not sum to 1 and are kept to 2**-31.
        seed: any whole number; of the sources that are no orders.
        num_rows: positions of an epoch, as many as rows in all sources where None.
        sizes: rows of each dataset in the `ConcatDataset`; needed where a source does not say (`Subset`, torch
            samplers, orders without `dataset_rows`).

    Raises:
        ValueError: no sources, not as many proportions or sizes as sources, proportions that are 0, negative or NaN, or
            sizes that are missing or too small for their source; on drawing, a row beyond its size.
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
        if isinstance(sources, str) or not hasattr(sources, "__iter__"):
            raise SettingTypeError(f"sources={sources!r} is no sequence: give a list of datasets, numbers or orders")
        if sizes is not None and not hasattr(sizes, "__iter__"):
            raise SettingTypeError(f"sizes={sizes!r} is no sequence: give the rows of each dataset, or None")
        self.orders = [_seeded_order(source, self.seed, place) for place, source in enumerate(sources)]
        self._splits = _splits(as_numbers("proportions", proportions, what="a proportion"), len(self.orders))
        lengths = [len(order) for order in self.orders]
        given = [None] * len(lengths) if sizes is None else list(sizes)
        if len(given) != len(lengths):
            raise ValueError(f"sizes has {len(given)} values for {len(lengths)} sources: give one for each")
        self._sizes = [
            _dataset_rows(order, size, f"sizes[{place}]")
            for place, (order, size) in enumerate(zip(self.orders, given, strict=True))
        ]
        whole_number("sizes: their sum", sum(self._sizes), minimum=1, remedy="take smaller datasets")
        self._offsets = np.cumsum([0, *self._sizes[:-1]])
        self._n = _positions(num_rows, sum(lengths))
        self._per_epoch = [int(count[0]) for count in self._deal(np.array([self._n], dtype=np.int64))]

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int:
        """Rows of the `ConcatDataset`."""
        return sum(self._sizes)

    def prepare(self, epochs: Sequence[int]) -> None:
        """Have every source prepare those of its epochs that lie within these."""
        for order, count in zip(self.orders, self._per_epoch, strict=True):
            spans = [range(epoch * count // len(order), -(-(epoch + 1) * count // len(order))) for epoch in epochs]
            prepare_all(order, sorted({turn for span in spans for turn in span}))

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch."""
        places = np.asarray(positions, dtype=np.int64)
        rows = np.empty(places.shape, dtype=np.int64)
        after = self._deal(places + 1)
        for number, (order, before) in enumerate(zip(self.orders, self._deal(places), strict=True)):
            mine = np.flatnonzero(after[number] > before)
            drawn = _endless(order, before[mine], epoch * self._per_epoch[number])
            _check_within(drawn, self._sizes[number], f"sizes[{number}]")
            rows[mine] = drawn + self._offsets[number]
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
        return settled_order(source, "Mixture")
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


def _positions(num_rows: object, default: int) -> int:
    value = default if num_rows is None else num_rows
    return whole_number("num_rows", value, minimum=1, remedy="give the positions of an epoch, or None")


def _dataset_rows(order: Order, given: object, option: str) -> int:
    """Rows of the dataset that `order` points into: what was given, else what the order says."""
    known, kind = getattr(order, "dataset_rows", None), type(order).__name__
    if given is None and known is None:
        raise ValueError(f"{option}=None, and {kind} does not say how many rows its dataset has: give {option}")
    size = whole_number(option, known if given is None else given, minimum=1, remedy="give the rows of the dataset")
    least = int(getattr(order, "least_rows", 0) if known is None else known)
    if size < least:
        raise ValueError(
            f"{option}={size} is below the {least} rows that {kind} draws from: give the rows of the dataset"
        )
    return size


def _check_within(rows: Integers, size: int, option: str) -> None:
    if rows.size and rows.max() >= size:
        raise ValueError(f"{option}={size}, but row {rows.max()} was drawn: give the rows of the dataset")


def _endless(order: Order, turns: Integers, start: int) -> Integers:
    """Rows at `start` + `turns` of an order that starts again, with its next epoch, whenever it ends."""
    # The start is an int of any size, and what is added to the turns less than an epoch.
    first, ahead = divmod(start, len(order))
    epochs, positions = np.divmod(turns + ahead, len(order))
    rows = np.empty(turns.shape, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        mine = epochs == epoch
        rows[mine] = order.indices(first + epoch, positions[mine])
    return rows
