"""What no rank may do alone: to stop, and to keep a checkpoint by the clock, all of them after the same step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from launcher.processes.signals import ASKERS, Wish

PERIOD_S = 0.25
MOST_STEPS = 16
"""The most steps between two agreements: where steps suddenly take a second, the next agreement comes well before the
30 s are over after which torchrun kills ranks that it asked to end."""
HALF = 32
"""Bits of a number that hold a rank."""


@dataclass(frozen=True)
class Decision:
    """What all ranks do after a step.

    Attributes:
        stop: because of this wish; None: they go on.
        keep: whether a checkpoint is due by the clock.
    """

    stop: Wish | None = None
    keep: bool = False


class Agreement:
    """Decides after a step; on several ranks by a small all-reduce, about four times a second.

    Args:
        wish: gives that of this rank, if there is one.
        reached: told each step that is done.
        device: where numbers are reduced, if there are several ranks.
        keep_every_s: gives the seconds between checkpoints, as they are now; None: none is due by the clock.
        clock: seconds; that of rank 0 decides when a checkpoint is due and when the ranks agree again.
    """

    def __init__(
        self,
        wish: Callable[[], Wish | None],
        reached: Callable[[int], None],
        device: torch.device | None = None,
        keep_every_s: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wish = wish
        self._reached = reached
        self._device = device
        self._keep_every_s = keep_every_s
        self._clock = clock
        self._kept_at = self._agreed_at = clock()
        self._steps = self._left = 1

    def after(self, step: int, at_once: bool = False) -> Decision:
        """What to do now that a step is done; the same on all ranks, all of which call it after every step.

        Args:
            step: that is done.
            at_once: whether they agree now, though they may have done so just before.
        """
        self._reached(step)
        self._left -= 1
        if self._left and not at_once:
            return Decision()
        now = self._clock()
        pace = steps_between((now - self._agreed_at) / self._steps)
        wish, keep, self._steps = self._over_all_ranks(self._wish(), self._is_due(now), pace)
        self._left, self._agreed_at = self._steps, now
        if keep:
            self._kept_at = now
        return Decision(wish, keep)

    def _is_due(self, now: float) -> bool:
        seconds = self._keep_every_s()
        return seconds is not None and now - self._kept_at >= seconds

    def _over_all_ranks(self, wish: Wish | None, keep: bool, pace: int) -> tuple[Wish | None, bool, int]:
        """The wish of any rank, and of rank 0 whether a checkpoint is due and the steps to the next agreement."""
        if not dist.is_initialized():
            return wish, keep, 1
        clock = (int(keep), pace) if dist.get_rank() == 0 else (0, 0)
        numbers = torch.tensor([as_number(wish), *clock], device=self._device)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        number, due, steps = numbers.tolist()
        return as_wish(number), bool(due), steps


def as_number(wish: Wish | None) -> int:
    """A wish as a number, of which the largest counts; 0 for none.

    >>> as_wish(as_number(Wish("SIGINT", 3)))
    Wish(by='SIGINT', rank=3)
    """
    return (ASKERS.index(wish.by) + 1 << HALF) + wish.rank if wish else 0


def as_wish(number: int) -> Wish | None:
    """The wish of a number."""
    return Wish(ASKERS[(number >> HALF) - 1], number % (1 << HALF)) if number else None


def steps_between(seconds_per_step: float) -> int:
    """The steps between two agreements of ranks that agree four times a second.

    >>> [steps_between(seconds) for seconds in (0.0, 0.001, 0.05, 0.2, 3.0)]
    [16, 16, 5, 1, 1]
    """
    return max(1, min(MOST_STEPS, int(PERIOD_S / max(seconds_per_step, 1e-9))))
