"""What happened to the jobs of a sweep, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.sweep.jobs import DONE, FAILED, PREEMPTED, RUNNING, WAITING, Record
from launcher.sweep.parameters import apart, varying
from launcher.sweep.results import log_of
from launcher.sweep.table import metric_names
from launcher.sweep.words import duration, number, progress, ranges, shown


@dataclass(frozen=True)
class About:
    """What does not change about a sweep.

    Attributes:
        total: how many jobs there will be; None: nobody knows.
        metric: as ``sweep.metric`` names it.
        root: the sweep's folder, as it is shown.
        devices: what its devices are called: cores or GPUs.
    """

    total: int | None
    metric: str | None = None
    root: Path = Path()
    devices: str = "cores"


def failures(before: Sequence[Record], after: Sequence[Record], root: Path) -> list[str]:
    """A line for each job that failed meanwhile."""
    known = {(record.number, record.attempts) for record in before if record.state == FAILED}
    failed = [each for each in after if each.state == FAILED and (each.number, each.attempts) not in known]
    return [f"job {record.number} failed: {shown(record.cause)}; see {log_of(record, root)}" for record in failed]


def changes(before: Sequence[Record] | None, after: Sequence[Record], about: About) -> list[str]:
    """A line for each thing that happened meanwhile.

    Args:
        before: the jobs as they stood; None: none was started yet, and what is over from before is told as a count.
        after: the jobs as they stand.
        about: the sweep.
    """
    if before is None:
        over = [record for record in after if record.state in DONE]
        return [f"{progress(over, about.total)} already"] if over else []
    known, keys, lines = {record.number: record for record in before}, varying(after), list[str]()
    for record in after:
        old = known.get(record.number, Record(record.number, record.overrides, record.folder))
        if record != old:
            lines += _started(old, record, keys, about) + _ended(old, record, about)
    return lines


def _started(old: Record, new: Record, keys: Sequence[str], about: About) -> list[str]:
    if new.attempts <= old.attempts:
        return []
    devices = f" on {about.devices} {ranges(new.devices)}" if new.devices else ""
    if new.attempts > 1:
        return [f"job {new.number} started again, attempt {new.attempts}{devices}"]
    settings = shown(apart(new, keys))
    return [f"job {new.number} started{devices}{': ' if settings else ''}{settings}"]


def _ended(old: Record, new: Record, about: About) -> list[str]:
    if new.state in (RUNNING, WAITING) or (new.state, new.attempts) == (old.state, old.attempts):
        return []
    if new.state == FAILED:
        return failures([old], [new], about.root)
    results = _results(new, about.metric)
    if new.state == PREEMPTED:
        return [f"job {new.number} preempted after step {new.step}{results}"]
    how = (
        f"has the results of job {new.same_as}"
        if new.same_as is not None
        else f"{new.state} after {duration(new.seconds)}"
    )
    return [f"job {new.number} {how}{results}"]


def _results(record: Record, metric: str | None) -> str:
    names = [name for name in metric_names([record], metric) if name in record.metrics]
    words = [f"{name.removeprefix('test/')} {number(record.metrics[name])}" for name in names if name != "train/loss"]
    return f": {', '.join(words)}" if words else ""
