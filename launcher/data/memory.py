"""A dataset that lies in memory and is fetched a whole batch at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


class InMemory(Dataset[tuple[Tensor, ...]]):
    """Tensors of equal length, such as inputs and targets.

    A loader asks for all rows of a batch at once, and gets them by one indexing operation per tensor instead of one
    Python call per row.

    Args:
        tensors: (rows, ...) each.

    Raises:
        ValueError: for tensors of different length, or none.
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise ValueError(f"tensors have {sorted(lengths)} rows: give one or more of the same length")
        self.tensors = tensors

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """One row."""
        return tuple(tensor[index] for tensor in self.tensors)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        """A batch, already collated."""
        chosen = torch.tensor(indices)
        return tuple(tensor[chosen] for tensor in self.tensors)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """What ``__getitems__`` gives is a batch already."""
        return batch
