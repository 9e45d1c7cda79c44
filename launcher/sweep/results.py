"""What a sweep found: the best job, a row for each in a CSV file, and the words at the end."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from launcher.sweep.jobs import CONSOLE, FAILED, FINISHED, STOPPED, Record
from launcher.sweep.parameters import apart, parameters, value_of, varying
from launcher.sweep.table import table
from launcher.sweep.words import by_state, number, ranges, shown

MOST = 20
"""Rows of the table at the end."""
MOST_CAUSES = 10
LABEL = 17
"""Width of the words before each line."""


def best(records: Iterable[Record], metric: str | None) -> Record | None:
    """The job of the best value among those that came to their end; the first where several have it.

    Args:
        records: the jobs.
        metric: ``accuracy`` where the highest value is best, ``-loss`` where the lowest is; None: nobody asks.
    """
    return next(iter(ranked(records, metric)), None)


def ranked(records: Iterable[Record], metric: str | None) -> list[Record]:
    """The jobs that came to their end with a value that is finite, the best first."""
    if metric is None:
        return []
    sign = 1 if metric.startswith("-") else -1
    found = [record for record in records if record.state in (FINISHED, STOPPED) and _is_value(record.value)]
    return sorted(found, key=lambda record: sign * (record.value or 0.0))


def to_csv(records: Sequence[Record]) -> str:
    """A line for each job: number, state, parameters, metrics, value, seconds, attempts, cause, folder.

    Numbers are as they were given; a text stands without its quotes; what a job lacks is empty.
    """
    own = [parameters(record) for record in records]
    keys = list(dict.fromkeys(key for job in own for key in job))
    names = list(dict.fromkeys(name for record in records for name in record.metrics))
    lines: list[list[Any]] = [["number", "state", *keys, *names, "value", "seconds", "attempts", "cause", "folder"]]
    for record, job in zip(records, own, strict=True):
        settings = [_plain(job[key]) if key in job else "" for key in keys]
        metrics = [record.metrics.get(name) for name in names]
        ends = [record.value, round(record.seconds, 3), record.attempts, record.cause, record.folder]
        lines.append([record.number, record.state, *settings, *metrics, *ends])
    return "".join(map(_csv_line, lines))


def summary(
    records: Sequence[Record], metric: str | None, command: str | None, root: Path = Path(), width: int = 100
) -> str:
    """The end of a sweep in words: jobs by state, the best ones in a table, those that failed, and the best.

    Args:
        records: the jobs.
        metric: as ``best`` takes it.
        command: that repeats the best job; None: nobody knows.
        root: the sweep's folder, as it is shown.
        width: columns of the terminal.
    """
    rows, jobs = _best_first(records, metric), len(records)
    first = [_line("sweep", f"{jobs} job{'s' if jobs != 1 else ''}: {by_state(records)}; folder {root}")]
    rest = [f"and {jobs - MOST} more: see {root / 'results.csv'}"] if jobs > MOST else []
    lines = [line.plain[:width] for line in table(rows[:MOST], varying(records), metric, width)]
    return "\n".join([*first, *lines, *rest, *_failures(records, root), *_best(records, metric, command)])


def value_words(record: Record, metric: str) -> str:
    """``accuracy 0.9800``."""
    return f"{metric.lstrip('-')} {number(record.value)}"


def log_of(record: Record, root: Path) -> Path:
    """What the processes of a job printed."""
    return root / record.folder / CONSOLE


def _is_value(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _plain(text: str) -> str:
    value = value_of(text)
    return value if isinstance(value, str) else text


def _csv_line(cells: Iterable[Any]) -> str:
    file = StringIO()
    csv.writer(file).writerow(cells)  # ends in CR LF, without which not all versions of Python quote a CR in a cell
    return file.getvalue().removesuffix("\r\n") + "\n"


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"


def _best_first(records: Sequence[Record], metric: str | None) -> list[Record]:
    first = ranked(records, metric)
    numbers = {record.number for record in first}
    return [*first, *(record for record in records if record.number not in numbers)]


def _failures(records: Sequence[Record], root: Path) -> list[str]:
    """A line for each cause, with the log of the first job that failed of it."""
    failed = sorted((record for record in records if record.state == FAILED), key=lambda record: record.cause)
    groups = [list(group) for _, group in groupby(failed, lambda record: record.cause)]
    groups.sort(key=lambda group: group[0].number)
    lines = []
    for group in groups[:MOST_CAUSES]:
        jobs = f"job{'s' if len(group) > 1 else ''} {ranges(str(record.number) for record in group)}"
        lines.append(_line("failed", f"{jobs}: {shown(group[0].cause)}; see {log_of(group[0], root)}"))
    left = sum(map(len, groups[MOST_CAUSES:]))
    return [*lines, *([_line("failed", f"{left} more, of other causes: see {root / 'results.csv'}")] if left else [])]


def _best(records: Sequence[Record], metric: str | None, command: str | None) -> list[str]:
    if metric is None:
        return [_line("best", "unknown: sweep.metric is null; set e.g. sweep.metric=accuracy or sweep.metric=-loss")]
    found = best(records, metric)
    if found is None:
        return [_line("best", f"none: no job came to its end with a value of {metric.lstrip('-')}")]
    settings = apart(found, varying(records))
    words = f"job {found.number}: {value_words(found, metric)}{' with ' if settings else ''}{shown(settings)}"
    return [_line("best", words), *([_line("repeat it with", command)] if command else [])]
