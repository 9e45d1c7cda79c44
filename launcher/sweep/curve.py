"""The evaluations of a run so far, from what it has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.observe.observer import METRICS

PREFIX = "test/"


def key_of_metric(metric: str) -> str:
    """How metrics.jsonl and status.json name what ``sweep.metric`` says.

    >>> key_of_metric("-loss"), key_of_metric("test/accuracy")
    ('test/loss', 'test/accuracy')
    """
    name = metric.lstrip("-")
    return name if name.startswith(PREFIX) else f"{PREFIX}{name}"


def evaluations(run_dir: Path, metric: str) -> list[tuple[int, float]]:
    """After how many steps the metric was evaluated, and its value, in order; NaN where it was no finite number.

    The last values in status.json would not do: they stand beside the step of the last line of training metrics.
    """
    key = key_of_metric(metric)
    try:
        content = (run_dir / METRICS).read_bytes()
    except OSError:
        return []
    lines = [_read(line) for line in content.splitlines(keepends=True) if key.encode() in line]
    return [(line["step"], float("nan") if line[key] is None else float(line[key])) for line in lines if key in line]


def _read(line: bytes) -> dict[str, Any]:
    """A line of metrics; an empty one where it is not whole yet."""
    try:
        return dict(json.loads(line)) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
