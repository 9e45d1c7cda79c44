"""A network that scores one item at a time."""

from __future__ import annotations

from torch import Tensor, nn

from ranking.data import FEATURES


class Scorer(nn.Module):
    """Items (rows, FEATURES) to scores (rows,).

    Args:
        width: features of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, items: Tensor) -> Tensor:
        """Score every item by itself."""
        scores: Tensor = self.layers(items)
        return scores.squeeze(-1)
