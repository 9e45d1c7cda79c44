"""Randomness that belongs to a row: the same on every rank, in every worker and after every resume."""

from __future__ import annotations

import operator
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

from samplers.permutation import words_from
from samplers.settings import SettingTypeError, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["SeededRows", "seeded"]

Row_co = TypeVar("Row_co", covariant=True)


class Rows(Protocol[Row_co]):
    """A dataset with positions."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row_co: ...


@contextmanager
def seeded(label: str, *parts: int) -> Iterator[None]:
    """Seed the global generators of python, numpy and torch (CPU) from a hash of everything given; restore them after.

    >>> with seeded("example", 1):
    ...     first = random.random()
    >>> with seeded("example", 1):
    ...     random.random() == first
    True
    """
    words = words_from(label, *parts, count=3)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - what augmentation uses
    random.seed(int(words[0]))
    np.random.seed(words[1:2].view(np.uint32))  # noqa: NPY002
    torch.default_generator.manual_seed(int(words[2]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


class SeededRows(Dataset[Row_co], Generic[Row_co]):
    """A dataset whose rows are made with generators seeded from (seed, epoch, index).

    So augmentation depends on neither ranks nor workers nor resume. The epoch lies in shared memory, which workers
    see, also persistent ones. A sampler that is given this dataset as its source sets the epoch by itself; with another
    sampler call `set_epoch` before each pass. Seeded are the global generators of python, numpy and torch (CPU):
    generators that the dataset keeps for itself are its own business.

    An index beyond the end stands for a further copy of a row, with randomness of its own: index k * len + row is
    copy k. `Repeated(..., numbered=True)` makes such indices.

    Args:
        dataset: a dataset with `__len__` and `__getitem__`.
        seed: any whole number.

    Raises:
        ValueError: the seed is no whole number, or the dataset has no rows to index (`SettingTypeError`); on reading a
            row, no epoch was ever set.
    """

    def __init__(self, dataset: Rows[Row_co], seed: int = 0) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise SettingTypeError(f"dataset={dataset!r} must have __len__ and __getitem__: give a map-style dataset")
        self.dataset = dataset
        self.seed = whole_number("seed", seed, remedy="give any whole number")
        self._epoch = torch.full((), -1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch for all processes that read this dataset; one inside that has `set_epoch` is told too."""
        wanted = whole_number("epoch", epoch, minimum=0, remedy="count epochs from 0")
        self._epoch.fill_(wanted)
        if callable(tell := getattr(self.dataset, "set_epoch", None)):
            tell(wanted)

    def __getitem__(self, index: int) -> Row_co:
        row = operator.index(index)
        epoch = int(self._epoch)
        if epoch < 0:
            raise ValueError(
                "epoch of SeededRows was never set, so every epoch would see the same randomness: give this dataset "
                "to the sampler as its source, or call set_epoch before each pass"
            )
        with seeded("row", self.seed, epoch, row):
            return self.dataset[row % len(self.dataset)]

    def __getitems__(self, indices: Sequence[int]) -> list[Row_co]:
        """Read a batch row by row: the dataset's own way of reading one would draw without these seeds."""
        return [self[index] for index in indices]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A deep copy, or one read from a file, has an epoch of its own, which its workers must see.
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        """Whatever else the dataset has, such as its classes, but not how python or torch would handle it."""
        if name == "dataset" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.dataset, name)
