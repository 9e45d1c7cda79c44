"""``status.json``: what a run is doing or how it ended, for machines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.files import replace_file, write_over

NAME = "status.json"


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        state: running, finished, stopped (by its own rule), preempted or failed.
        step: optimizer steps done.
        epoch: the one that the last step belongs to, counted from 0; the console counts from 1.
        rows: rows trained on, over all ranks.
        world_size: ranks that work.
        restarts: how often an elastic agent restarted the run.
        metrics: the last value of each.
        checkpoint_step: after which the last checkpoint was taken that was kept; null: none was.
        checkpoint_error: why the last one was not kept; null: it was.
        weights_sha256: digest of the weights at the end.
        error: for a failure, its rank, type and message.
    """

    state: str = "running"
    step: int = 0
    epoch: int = 0
    rows: int = 0
    world_size: int = 1
    restarts: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_error: str | None = None
    weights_sha256: str | None = None
    error: dict[str, Any] | None = None


def write_status(run_dir: Path, status: Status) -> None:
    """Replace ``status.json`` in one move; numbers that are not finite become null."""
    replace_file(run_dir / NAME, to_json(asdict(status)) + "\n")


def write_last(run_dir: Path, status: Status) -> None:
    """As ``write_status``, for the end of a run: where the disk has no room for another file, over the old one.

    Raises:
        OSError: where it has no room there either; the old one stays.
    """
    try:
        write_status(run_dir, status)
    except OSError:
        write_over(run_dir / NAME, to_json(asdict(status)) + "\n")


def read_status(run_dir: Path) -> Status:
    """The status that was written last; that of a run that has just begun where none can be read."""
    try:
        return Status(**json.loads((run_dir / NAME).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return Status()


def mark_of_status(run_dir: Path) -> tuple[int, int] | None:
    """What changes whenever the status is written; None: it was not yet."""
    try:
        found = (run_dir / NAME).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def write_failure(run_dir: Path, rank: int, kind: str, message: str) -> None:
    """Turn the status into that of a failed run, unless the run has ended already."""
    status = read_status(run_dir)
    if status.state == "running":
        error = {"rank": rank, "type": kind, "message": message}
        write_last(run_dir, replace(status, state="failed", error=error))


def write_preempted(run_dir: Path) -> None:
    """Turn the status into that of a run that was asked to end before it did anything new."""
    status = read_status(run_dir)
    if status.state not in ("finished", "stopped"):
        write_last(run_dir, replace(status, state="preempted", error=None))


def to_json(value: dict[str, Any]) -> str:
    """JSON without the NaN and Infinity that most readers refuse; they become null."""
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
