"""Windows of steps of which all that is computed is recorded: Chrome traces, and tables of the top operators."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from samplers.words import counted

log = logging.getLogger(__name__)
FOLDER = "trace"
ROWS = 20
"""Operators in a table."""
SILENT = ("KINETO_LOG_LEVEL", "99")
"""Torch's recorder otherwise tells the console of itself, and on machines without a GPU of errors."""


class Profiler:
    """Records nothing."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around training."""
        yield

    def step(self) -> None:
        """A step is done."""


@dataclass(frozen=True)
class Windows:
    """When what is recorded.

    Attributes:
        wait: steps before each window.
        warmup: steps after that which are recorded and left out.
        active: steps of a window.
        repeat: windows.
        options: of ``torch.profiler.profile``.
        most_bytes: of a compressed trace.
    """

    wait: int
    warmup: int
    active: int
    repeat: int
    options: dict[str, Any]
    most_bytes: int

    @property
    def cycle(self) -> int:
        """Steps from the end of one window to the end of the next."""
        return self.wait + self.warmup + self.active

    def begins(self, steps: int) -> bool:
        """Whether recording begins now that so many steps are done.

        >>> windows = Windows(wait=1, warmup=1, active=3, repeat=2, options={}, most_bytes=1)
        >>> [steps for steps in range(20) if windows.begins(steps)]
        [1, 6]
        """
        return steps % self.cycle == self.wait and steps < self.repeat * self.cycle

    def lacking(self, steps: int) -> str | None:
        """What is to be said of a run of so many steps, if a window did not close."""
        if steps >= self.repeat * self.cycle:
            return None
        return (
            f"profile: {steps // self.cycle} of {counted(self.repeat, 'window')} closed: the run did "
            f"{counted(steps, 'step')}, and profile.repeat={self.repeat} x (profile.wait={self.wait} + "
            f"profile.warmup={self.warmup} + profile.active={self.active}) are {self.repeat * self.cycle}"
        )


class WindowProfiler(Profiler):
    """Records windows of the steps of this rank.

    Args:
        folder: where traces and tables go.
        rank: this one.
        windows: when.
        first: the steps that the run had done before.
    """

    def __init__(self, folder: Path, rank: int, windows: Windows, first: int = 0) -> None:
        self._folder, self._rank, self._windows, self._first = folder, rank, windows, first
        self._steps = 0
        self._recorder: Any = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around training; what was recorded of a window that did not close is kept too, and that is said."""
        os.environ.setdefault(*SILENT)
        self._begin_if_due()
        try:
            yield
        finally:
            self._end()
            lacking = self._windows.lacking(self._steps)
            if lacking:
                log.warning("%s", lacking)
            elif self._rank == 0:
                log.info("profile: %s in %s", counted(self._windows.repeat, "window"), self._folder)

    def step(self) -> None:
        """A step is done."""
        self._steps += 1
        if self._recorder is not None:
            self._recorder.step()
            if self._steps % self._windows.cycle == 0:
                self._end()
        self._begin_if_due()

    def _begin_if_due(self) -> None:
        if not self._windows.begins(self._steps):
            return
        # A recorder for each window: one for all would warn that it forgets the windows before.
        steps = schedule(wait=0, warmup=self._windows.warmup, active=self._windows.active, repeat=1)
        self._recorder = profile(schedule=steps, on_trace_ready=self._keep, **self._windows.options)
        self._recorder.start()

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def _keep(self, recorder: Any) -> None:
        """Write what was recorded; a folder that is full ends no run."""
        done = self._steps % self._windows.cycle or self._windows.cycle
        last = self._first + self._steps
        first = last - done + self._windows.wait + self._windows.warmup + 1
        whole = "" if done == self._windows.cycle else "_unfinished"
        name = f"rank_{self._rank}_steps_{first}_to_{last}{whole}"
        try:
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"{name}.txt").write_text(self._table(recorder), encoding="utf-8")
            trace = self._folder / f"{name}.json.gz"
            recorder.export_chrome_trace(str(trace))
            left_out = bound(trace, self._windows.most_bytes)
        except OSError as error:
            log.warning("profile: %s cannot be written: %s", self._folder / name, error.strerror or error)
            return
        if left_out:
            log.warning("profile: %s lacks its %d shortest events: profile.most_mb is reached", trace, left_out)

    def _table(self, recorder: Any) -> str:
        by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        averages = recorder.key_averages(group_by_input_shape=bool(self._windows.options.get("record_shapes")))
        return str(averages.table(sort_by=by, row_limit=ROWS, max_name_column_width=60))


def activities(device: torch.device) -> list[ProfilerActivity]:
    """What is recorded on a device."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def bound(trace: Path, most_bytes: int) -> int:
    """Leave the shortest events out of a compressed trace that is too large; returns how many that were."""
    size = trace.stat().st_size
    if size <= most_bytes:
        return 0
    content = json.loads(gzip.decompress(trace.read_bytes()))
    events = content["traceEvents"]
    count = len(events)
    while size > most_bytes and events:
        events = longest(events, int(len(events) * min(0.9, most_bytes / size)))
        packed = gzip.compress(json.dumps({**content, "traceEvents": events}).encode())
        size = len(packed)
    trace.write_bytes(packed)
    return count - len(events)


def longest(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The ``count`` events that took longest, in the order they had; those that name processes come first.

    >>> longest([{"dur": 1}, {"dur": 3}, {"ph": "M"}, {"dur": 2}], 3)
    [{'dur': 3}, {'ph': 'M'}, {'dur': 2}]
    """

    def weight(number: int) -> float:
        return float("inf") if events[number].get("ph") == "M" else float(events[number].get("dur", 0.0))

    kept = sorted(range(len(events)), key=weight, reverse=True)[:count]
    return [events[number] for number in sorted(kept)]
