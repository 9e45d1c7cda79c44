"""Pairs of items of which one is better; how much better is never shown to the model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

FEATURES = 8


class Pairs(Dataset[dict[str, Tensor]]):
    """Rows ``{"better": (FEATURES,), "worse": (FEATURES,), "gap": ()}``, drawn from a hidden utility.

    Args:
        rows: number of pairs.
        seed: of the items; another seed gives other items of the same utility.
    """

    def __init__(self, rows: int, seed: int) -> None:
        items = torch.randn(rows, 2, FEATURES, generator=torch.Generator().manual_seed(seed))
        utility = items[..., 0] + items[..., 1] * items[..., 2] - items[..., 3].abs()
        first_is_worse = utility[:, 0] < utility[:, 1]
        self.items = torch.where(first_is_worse[:, None, None], items.flip(1), items)
        self.gaps = (utility[:, 0] - utility[:, 1]).abs()

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One pair."""
        better, worse = self.items[index]
        return {"better": better, "worse": worse, "gap": self.gaps[index]}
