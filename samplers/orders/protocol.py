"""What an order is, and the base of those that keep one table per epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from samplers.permutation import Integers, Words, random_words, words_from

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BatchOrder", "Order", "TableOrder", "prepare_all"]


@runtime_checkable
class Order(Protocol):
    """What an order promises.

    It is pure (the same arguments give the same rows, whatever was asked before), safe to ask from several threads,
    picklable, and knows nothing of ranks.

    Two attributes more may be there. `dataset_rows` is the number of rows of the dataset that the indices point into,
    for orders that put other orders side by side. `prepare(epochs)` is called on every rank of torch.distributed before
    any of these epochs is asked for, to have them drawn once for all ranks.
    """

    def __len__(self) -> int:
        """Positions of an epoch; at least 1."""
        ...

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the dataset index at each of `positions` (int64, each within [0, len)) of an epoch, as int64."""
        ...

    def identity(self) -> dict[str, Any]:
        """What tells this order from another, small and fit for JSON; it goes into the state of a sampler."""
        ...


@runtime_checkable
class BatchOrder(Order, Protocol):
    """An order that is made for global batches of one size, which the sampler fills in where it was left out."""

    def with_global_size(self, global_size: int) -> BatchOrder:
        """Return this order for global batches of `global_size` rows.

        Raises:
            ValueError: it was made for another size, or its rows cannot fill global batches of this one.
        """
        ...


def prepare_all(order: Order, epochs: Sequence[int]) -> None:
    """Have `order` prepare `epochs` where it wants to; every rank of torch.distributed must call this."""
    if callable(prepare := getattr(order, "prepare", None)):
        prepare(epochs)


class TableOrder(ABC):
    """An order that lists a whole epoch at once: O(n) memory, one epoch kept."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # One slot, replaced as a whole: a reader in another thread sees the old pair or the new one, never a mixture.
        self._kept: tuple[int, Integers] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _list(self, epoch: int) -> Integers:
        """Dataset indices of the whole epoch."""

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the dataset index at each of `positions` of this epoch."""
        kept = self._kept
        if kept is None or kept[0] != epoch:
            kept = (epoch, self._list(epoch))
            self._kept = kept
        return kept[1][positions]

    def _random(self, label: str, epoch: int, count: int) -> Words:
        """`count` random words of this seed and epoch, apart from those of any other label."""
        return random_words(count, words_from(label, self.seed, epoch, count=2))
