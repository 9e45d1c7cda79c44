"""Where the time of training goes: which part of it takes which share, without waiting for a device in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")
PARTS = (
    "data",
    "to_device",
    "forward_backward",
    "optimizer",
    "communication",
    "evaluation",
    "checkpoint",
    "other",
)
"""What the time of training is divided into.

- data: waiting for the next rows; with ``data.workers=0`` that is reading them.
- to_device: starting to move them to the device, and on CUDA the move itself.
- forward_backward: computing losses and gradients, with the communication that goes on meanwhile, and that of layers.
- optimizer: clipping, looking for what is not finite, the step of the optimizer and of what follows the weights.
- communication: waiting for other ranks and their gradients once the own are computed, and for what they agree on.
- evaluation: all of it.
- checkpoint: what training waits for; writing it goes on beside.
- other: the rest.
"""
OTHER = PARTS[-1]
MOST_MARKS = 4096
NOTHING: AbstractContextManager[Any] = nullcontext()


class Clock:
    """Measures nothing; how those who train say which part begins."""

    def part(self, name: str) -> AbstractContextManager[Any]:  # noqa: ARG002 - it is nothing's name
        """Until the block is left, time belongs to ``name``, one of ``PARTS``, but for blocks inside it."""
        return NOTHING

    def after_backward(self, loss: Tensor, name: str) -> None:
        """Time belongs to ``name`` from when the gradients of ``loss`` are computed, until ``backward`` is over."""

    def seconds(self) -> Mapping[str, float]:
        """The seconds of each part since the last call; none where nothing is measured."""
        return {}


class Timer(Protocol):
    """Marks moments.

    A moment may lie in the future: a device reaches it when it has done what it was given before.
    """

    def mark(self) -> Any:
        """This moment."""
        ...

    def wait(self, mark: Any) -> None:
        """Until a moment is past, as those before it are then."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two moments that are past."""
        ...


@dataclass(frozen=True)
class HostTimer:
    """The moments of this process.

    Attributes:
        now: seconds of a clock that never goes back.
    """

    now: Callable[[], float] = time.perf_counter

    def mark(self) -> float:
        """This moment."""
        return self.now()

    def wait(self, mark: float) -> None:
        """They are past."""

    def seconds(self, begin: float, end: float) -> float:
        """Between two moments."""
        return end - begin


class CudaTimer:
    """The moments of the current stream of a CUDA device, which are known when it has reached them.

    A part counts as long as the device takes from where it begins to where it ends, be it at work or idle since this
    process gives it nothing; what this process does while the device is busy with earlier parts counts nothing.
    """

    def mark(self) -> torch.cuda.Event:
        """An event after all that the device was given."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Until the device has reached the event."""
        mark.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Between two events."""
        return float(begin.elapsed_time(end)) / 1000


class Stopwatch(Clock):
    """Measures how long each part takes.

    Args:
        timer: what marks moments.
        alone: whether there is no other rank: what else counts as communication is then a part of computing.
    """

    def __init__(self, timer: Timer, *, alone: bool = False) -> None:
        self._timer = timer
        self._counts_as = {"communication": "forward_backward"} if alone else {}
        self._alone = alone
        self._marks: list[tuple[str, Any]] = [(OTHER, timer.mark())]
        self._seconds = dict.fromkeys(PARTS, 0.0)

    def part(self, name: str) -> AbstractContextManager[Any]:
        """As in ``Clock``."""
        return _Part(self, self._counts_as.get(name, name))

    def after_backward(self, loss: Tensor, name: str) -> None:
        """As in ``Clock``; DistributedDataParallel waits for other ranks in a callback that is queued after this."""
        if self._alone or not loss.requires_grad:
            return
        queue = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001 - it has no other name

        def is_done() -> None:
            self.begin(name)

        loss.register_hook(lambda _: queue(is_done))  # type: ignore[no-untyped-call]

    def begin(self, name: str) -> str:
        """A part begins here, and another ends, whose name is returned."""
        before, _ = self._marks[-1]
        self._marks.append((name, self._timer.mark()))
        if len(self._marks) > MOST_MARKS:
            self._add_up(MOST_MARKS // 2)
        return before

    def seconds(self) -> Mapping[str, float]:
        """The seconds of each part since the last call; on CUDA this waits for the device."""
        self.begin(self._marks[-1][0])
        self._add_up(len(self._marks) - 1)
        found, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return found

    def _add_up(self, count: int) -> None:
        """Forget the oldest marks, and keep what lies between them."""
        self._timer.wait(self._marks[count][1])
        for (name, begin), (_, end) in pairwise(self._marks[: count + 1]):
            self._seconds[name] += self._timer.seconds(begin, end)
        del self._marks[:count]


class _Part:
    def __init__(self, clock: Stopwatch, name: str) -> None:
        self._clock, self._name, self._outer = clock, name, OTHER

    def __enter__(self) -> None:
        self._outer = self._clock.begin(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._clock.begin(self._outer)


def clock_of(device: torch.device, *, alone: bool) -> Stopwatch:
    """A stopwatch for what a rank does with ``device``; ``alone``: it is the only rank."""
    return Stopwatch(CudaTimer() if device.type == "cuda" else HostTimer(), alone=alone)


def waited_for(batches: Iterable[Batch], clock: Clock) -> Iterator[Batch]:
    """The batches; waiting for them is the part ``data``."""
    with clock.part("data"):
        left, end = iter(batches), object()
    while True:
        with clock.part("data"):
            batch: Any = next(left, end)
        if batch is end:
            return
        yield batch


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """The share of each part, which add up to 1.

    >>> shares_of({"data": 1.0, "other": 3.0})
    {'data': 0.25, 'other': 0.75}
    """
    total = sum(seconds.values())
    return {name: value / total if total > 0 else float(name == OTHER) for name, value in seconds.items()}
