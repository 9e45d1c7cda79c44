"""What every batch sampler of this package shows to loops of others, which may deal batches to ranks by themselves."""

from __future__ import annotations

from torch.utils.data import Sampler

__all__ = ["DealtSampler"]


class DealtSampler(Sampler[list[int]]):
    """A batch sampler whose batches are this rank's own already."""

    _world_size: int
    _most_rows: int

    @property
    def batch_size(self) -> int:
        """Most rows of a batch, in a world of one rank.

        Raises:
            ValueError: in a larger world; who asks there, as Accelerate and Lightning do, is about to deal the batches
                to the ranks once more.
        """
        if self._world_size == 1:
            return self._most_rows
        raise ValueError(
            f"batch_size of {type(self).__name__} was asked for: it already deals to world_size={self._world_size} "
            "ranks, so its batches must not be dealt or cut again; with Lightning set use_distributed_sampler=False, "
            "with Accelerate leave its loader out of accelerator.prepare"
        )
