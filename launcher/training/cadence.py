"""``checkpoint.every_steps``: after which steps a checkpoint is due, so that no failure costs more than so many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cadence:
    """When a checkpoint is due by the count of steps.

    What is written beside training is on the disk some steps after it was taken, and one is written at a time: when the
    next is taken, the one before is on the disk. So a failure costs the steps of two intervals at most, and beside
    training one more is taken halfway, which makes way for the next.

    Attributes:
        every: the most steps that a failure costs; None: nothing is due by steps.
        background: whether they are written beside training.
    """

    every: int | None = None
    background: bool = True

    @property
    def beside(self) -> bool:
        """Whether training goes on while one is written: not where there is no step between two."""
        return self.background and self.every != 1

    def is_due(self, step: int) -> bool:
        """Whether one is taken after ``step``.

        >>> [step for step in range(1, 16) if Cadence(5).is_due(step)]
        [2, 5, 7, 10, 12, 15]
        >>> [step for step in range(1, 16) if Cadence(5, background=False).is_due(step)]
        [5, 10, 15]
        """
        return self.every is not None and (step % self.every == 0 or self.makes_way(step))

    def makes_way(self, step: int) -> bool:
        """Whether that of ``step`` is one halfway, which goes when the next is on the disk."""
        return self.every is not None and self.beside and step % self.every == self.every // 2
