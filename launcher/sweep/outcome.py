"""What became of a job, from what its processes left."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.files import DISK
from launcher.observe.status import Status, read_status, write_failure, write_preempted
from launcher.processes import errors
from launcher.processes.pulse import LOST
from launcher.sweep.curve import key_of_metric
from launcher.sweep.jobs import CONSOLE, FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, STOPPED

ERROR = "error: "
LITTLE = 2**16
"""Bytes of room on a disk that count as none."""
LAST_BYTES = 2**16
"""Bytes at the end of what a job printed that are looked through."""
UNKNOWN = 255
"""What multiprocessing gives out for the exit status of a process that it lost sight of."""
MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")


def told_by(status: Status, failed_first: tuple[int, int] | None, *, said: bool) -> Status:
    """What status.json tells of the processes that just ended.

    Args:
        status: what it says.
        failed_first: rank and exit status of the first rank that did not end well; None: all did.
        said: whether these processes wrote it; else those of an earlier start did, whose end is not theirs.
    """
    return status if said or failed_first is None else replace(status, state=RUNNING, error=None)


def ended_as(status: Status, failed_first: tuple[int, int] | None) -> str:
    """The state of a job whose processes are gone.

    Args:
        status: what it left in status.json.
        failed_first: rank and exit status of the first rank that did not end well; None: all did.
    """
    if failed_first is None and status.state in (FINISHED, STOPPED):
        return status.state
    preempted = failed_first is not None and failed_first[1] == errors.PREEMPTED
    return PREEMPTED if preempted else FAILED


def cause_of(
    status: Status,
    statuses: Mapping[int, int],
    failed_first: tuple[int, int] | None,
    kills_for_memory: int = 0,
    last_words: str = "",
) -> str:
    """Why a job failed, in one line.

    Args:
        status: what it left in status.json.
        statuses: exit statuses of its ranks; of a signal: its number below zero.
        failed_first: rank and exit status of the first that did not end well; None: all did.
        kills_for_memory: processes that the system killed for memory meanwhile.
        last_words: the last error that they printed, or what else may be known of an end without one.
    """
    error = status.error or {}
    rank, lost = int(error.get("rank", 0)), error.get("type") == LOST
    if lost and statuses.get(rank, errors.FAILED) != errors.FAILED:  # the others only saw that it was gone
        return _end_of(rank, statuses[rank], kills_for_memory, last_words)
    if error:
        message = str(error.get("message", "")).strip().splitlines()
        return ": ".join([f"rank {rank}", str(error.get("type")), *message[:1]])
    if failed_first is None:
        return "its processes ended before the run did"
    return _end_of(*failed_first, kills_for_memory, last_words)


def _end_of(rank: int, code: int, kills_for_memory: int, last_words: str) -> str:
    if code == -signal.SIGKILL and kills_for_memory:
        return f"rank {rank} was killed by SIGKILL: the system ran out of memory"
    if code < 0:
        return f"rank {rank} was killed by {signal_name(-code)}"
    if code == errors.WRONG_SETTINGS:
        return last_words or f"rank {rank} ended with exit status {code} and no word"
    if code == UNKNOWN:
        return f"the process that ranks are forked from was killed, or rank {rank} ended with exit status {code}"
    return f"rank {rank} ended with exit status {code}"


def not_started(error: BaseException) -> str:
    """Why a job failed whose processes could not be started."""
    return f"its processes could not be started: {error or 'what they are forked from was killed'}"


def last_words(run_dir: Path, since: int) -> str:
    """The last error in what the processes of a job printed; of a full disk, on which nothing is printed, that it is.

    Args:
        run_dir: of the job.
        since: bytes that ``console.log`` had before they were started.
    """
    with suppress(OSError), (run_dir / CONSOLE).open("rb") as file:
        file.seek(max(since, file.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
        if errors_found := [line for line in lines if line.startswith(ERROR)]:
            return errors_found[-1].removeprefix(ERROR)
    with suppress(OSError):
        if DISK.free(run_dir) < LITTLE:
            return f"it ended without a word, and {run_dir} has no room left"
    return ""


def printed(run_dir: Path) -> int:
    """Bytes that the processes of a job printed so far."""
    with suppress(OSError):
        return (run_dir / CONSOLE).stat().st_size
    return 0


def leave_end(run_dir: Path, state: str, cause: str, rank: int = 0) -> None:
    """Leave how a job ended in its status.json, where its own processes could not; on a full disk it stays.

    Args:
        run_dir: of the job.
        state: in which it ended.
        cause: why it failed.
        rank: that failed first.
    """
    with suppress(OSError):
        if state == FAILED:
            write_failure(run_dir, rank, "JobFailed", cause)
        elif state in (PREEMPTED, PRUNED) and read_status(run_dir).state == RUNNING:
            write_preempted(run_dir)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kills_for_memory(events: Path = MEMORY_EVENTS) -> int:
    """How many processes of this control group the system has killed for memory; 0 where it does not tell."""
    try:
        counts = dict(line.split() for line in events.read_text(encoding="ascii").splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def value_of(metrics: Mapping[str, float], metric: str | None) -> float | None:
    """The value of ``sweep.metric`` among the last metrics of a job; None where it has none that is a number."""
    if metric is None:
        return None
    value = metrics.get(key_of_metric(metric))
    return None if value is None or math.isnan(value) else float(value)
