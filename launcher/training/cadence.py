"""``checkpoint.every_steps``: after which steps a checkpoint is due, so that no failure costs more than so many."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.configure.schema import CheckpointConfig


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


def in_words(checkpoint: CheckpointConfig) -> str:
    """When checkpoints are taken, and which of them stay.

    >>> in_words(CheckpointConfig())
    'after 10 s, then as often as costs least, the newest 2 stay, written beside training'
    >>> in_words(CheckpointConfig(every_steps=50, every_seconds=60, keep=1, keep_best="-loss"))
    'every 50 steps and halfway between, every 60 s, the newest 1 and the best by -loss stay, written beside training'
    """
    cadence = Cadence(checkpoint.keep_every, checkpoint.background)
    steps = f"every {cadence.every} steps" if cadence.every != 1 else "after every step"
    when = [
        *([f"{steps}{' and halfway between' * cadence.beside}"] if cadence.every else []),
        *([f"every {checkpoint.every_seconds:g} s"] if checkpoint.every_seconds else []),
        *(["after 10 s, then as often as costs least"] if checkpoint.by_cost else []),
    ]
    best = f" and the best by {checkpoint.keep_best}" if checkpoint.keep_best else ""
    how = "beside training" if cadence.beside else "while training waits"
    return f"{', '.join(when) or 'at the end'}, the newest {checkpoint.keep}{best} stay, written {how}"
