"""How good an order is."""

from __future__ import annotations

from torch import Tensor


def in_order(difference: Tensor, gap: Tensor) -> Tensor:
    """1 for each pair whose better item has the higher score, else 0: (rows,)."""
    return (difference > 0).to(gap.dtype)


class Regret:
    """What is lost by trusting the scores: the gap of each pair in the wrong order, 0 for the others.

    Args:
        tolerance: gaps up to this size do not count.
    """

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tolerance = tolerance

    def __call__(self, difference: Tensor, gap: Tensor) -> Tensor:
        """(rows,)."""
        return gap * ((difference <= 0) & (gap > self.tolerance))
