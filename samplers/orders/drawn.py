"""Any torch sampler as an order."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed
from torch.utils.data import BatchSampler

from samplers.orders.columns import digest
from samplers.orders.plain import check_seed
from samplers.permutation import words_from
from samplers.randomness import seeded
from samplers.settings import SettingTypeError, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import Sampler

    from samplers.permutation import Integers

__all__ = ["FromSampler", "deals_to_ranks"]

_SETTINGS = ("weights", "indices", "num_samples", "replacement")
"""Attributes of samplers, torch's and those like them, that say which rows they draw."""


class FromSampler:
    """The order in which a torch sampler draws, the same on every rank.

    The sampler is drawn once per epoch, with its own generator and the global ones of python, numpy and torch seeded
    from (seed, epoch) for the draw and restored after it; so a sampler that draws from these is repeatable, and every
    rank draws the same. For one that draws from elsewhere, a sampler whose ranks are those of torch.distributed has
    rank 0 draw and send the rows to the others; such an order cannot be repeated after a restart. O(n) memory.

    Args:
        sampler: yields dataset indices, and has a length.
        seed: any whole number.

    Raises:
        ValueError: a sampler that deals to ranks or yields batches (`SettingTypeError`), or has no rows; on drawing,
            not as many rows as its length says.
    """

    def __init__(self, sampler: Sampler[int], seed: int = 0) -> None:
        kind = type(sampler).__name__
        if deals_to_ranks(sampler):
            raise SettingTypeError(
                f"source={kind} is a sampler that already deals to ranks, and its rows would be dealt again: give the "
                "dataset itself, or an order such as samplers.Shuffled"
            )
        if isinstance(sampler, BatchSampler):
            raise SettingTypeError(
                f"source={kind} is a sampler that yields batches: give the sampler inside it, and the size of a batch "
                "as global_size"
            )
        if isinstance(sampler, str | bytes) or not hasattr(sampler, "__iter__"):
            raise SettingTypeError(f"source={sampler!r} is no sampler: give one that yields the indices of rows")
        size = len(sampler) if hasattr(sampler, "__len__") else None
        self._n = whole_number(f"source={kind}: n", size, minimum=1, remedy="give a sampler with __len__ and rows")
        self.sampler = sampler
        self.seed = check_seed(seed)
        # Of when it was made: a sampler may change while it is drawn from.
        self._settings = _settings(sampler)
        # The epochs that were prepared, or the last two, replaced as a whole: a carried tail is of the epoch before.
        self._kept: dict[int, Integers] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def __len__(self) -> int:
        return self._n

    @property
    def dataset_rows(self) -> int | None:
        """Rows of the dataset that the sampler says it draws from, None where it says nothing."""
        source = getattr(self.sampler, "data_source", None)
        return len(source) if isinstance(source, Sized) else None

    def indices(self, epoch: int, positions: Integers) -> Integers:
        """Return the rows at `positions` of this epoch's draw."""
        drawn = self._kept.get(epoch)
        if drawn is None:
            drawn = self._draw(epoch)
            self._keep(epoch, drawn)
        return drawn[positions]

    def prepare(self, epochs: Sequence[int]) -> None:
        """Have rank 0 of torch.distributed draw `epochs` for all ranks, and keep these; every rank must call this."""
        drawn: list[Any] = [None]
        if distributed.get_rank() == 0:
            kept = self._kept
            drawn = [{epoch: kept[epoch] if epoch in kept else self._draw(epoch) for epoch in epochs}]
        distributed.broadcast_object_list(drawn)
        self._kept = drawn[0]

    def identity(self) -> dict[str, Any]:
        """Name, type of the sampler, rows, seed and a hash of its weights and the like."""
        kind = type(self.sampler).__name__
        return {"order": "FromSampler", "sampler": kind, "n": self._n, "seed": self.seed, "settings": self._settings}

    def _keep(self, epoch: int, drawn: Integers) -> None:
        self._kept = {
            **{other: rows for other, rows in self._kept.items() if other in {epoch - 1, epoch + 1}},
            epoch: drawn,
        }

    def _list(self) -> Integers:
        try:
            return np.fromiter(self.sampler, dtype=np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise SettingTypeError(
                f"source={type(self.sampler).__name__} yields something else than indices of rows ({error}): give a "
                "sampler of single rows, and the size of a batch as global_size"
            ) from error

    def _draw(self, epoch: int) -> Integers:
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        state = own.get_state() if isinstance(own, torch.Generator) else None
        with seeded("from sampler", self.seed, epoch):
            if isinstance(own, torch.Generator):
                own.manual_seed(int(words_from("from sampler generator", self.seed, epoch)[0]))
            drawn = self._list()
        if isinstance(own, torch.Generator) and state is not None:
            own.set_state(state)
        if drawn.size != self._n:
            raise ValueError(
                f"source={type(self.sampler).__name__} yields {drawn.size} rows in epoch {epoch}, len says {self._n}: "
                "a sampler must yield as many rows as its length"
            )
        return drawn


def _settings(sampler: object) -> str:
    """Return a hash of what samplers are commonly made of."""
    parts = {name: getattr(sampler, name) for name in _SETTINGS if hasattr(sampler, name)}
    texts = [
        f"{name}={value!r}" if isinstance(value, bool | int | float | str) else f"{name}:{_column_digest(value)}"
        for name, value in parts.items()
    ]
    return format(int(words_from("sampler settings", *texts)[0]), "016x")


def _column_digest(values: object) -> str:
    try:
        column = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    except (TypeError, ValueError):
        return ""
    return digest(column) if column.dtype.kind in "iufb" else ""


def deals_to_ranks(sampler: object) -> bool:
    """Whether a sampler, or one inside it, gives each rank its own rows."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        if any(hasattr(sampler, name) for name in ("num_replicas", "num_processes", "world_size", "plan")):
            return True
        seen.add(id(sampler))
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False
