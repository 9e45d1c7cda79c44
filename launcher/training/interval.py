"""Seconds between checkpoints: as the user says, or where saving and failing together cost the least."""

from __future__ import annotations

import math

FIRST_S = 10.0
"""Seconds to the first checkpoint, by which the time of saving is measured."""


def young_s(save_s: float, failure_s: float) -> float:
    """Seconds between checkpoints at which the time for saving and the time lost in failures are least together.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).

    Args:
        save_s: seconds that a checkpoint costs.
        failure_s: seconds between two failures, on average.

    >>> young_s(save_s=0.5, failure_s=14_400)
    120.0
    """
    return math.sqrt(2 * save_s * failure_s)


class Interval:
    """When a checkpoint is due by the clock.

    Args:
        every_s: seconds between two; None: as ``failure_s`` says.
        failure_s: seconds between failures, by which the interval is chosen from the measured time of saving; None:
            nothing is due by the clock.
    """

    def __init__(self, every_s: float | None = None, failure_s: float | None = None) -> None:
        self._failure_s = None if every_s else failure_s
        self._seconds = every_s or (FIRST_S if failure_s else None)

    @property
    def seconds(self) -> float | None:
        """Seconds between two checkpoints as things are now; None: none is due by the clock."""
        return self._seconds

    def saved(self, waited_s: float, write_s: float) -> None:
        """A checkpoint was kept.

        Args:
            waited_s: seconds for which training waited, which are its cost.
            write_s: seconds until it was written: the next is not due before that.
        """
        if self._failure_s is not None:
            self._seconds = max(young_s(waited_s, self._failure_s), write_s)
