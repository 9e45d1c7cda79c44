"""Signs of life: what each rank leaves in the store about once a second, so that one that hangs can be named."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch
from torch.distributed import Store

from launcher.processes.origin import is_users_file
from launcher.processes.signals import lives

WORKS, WAITS, APART = "works", "waits", "apart"
LOST = "RankLost"
"""The type of failure of a rank whose process is gone and left no word."""
SAME_S = 2.0
"""Seconds between the last signs of ranks whose machine was lost at one time."""
TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Pulse:
    """A sign of life.

    Attributes:
        rank: whose it is.
        machine: where that is.
        process: its number there.
        begun: when that process began, in seconds since 1970.
        state: works; waits, it had to give up waiting for others; apart, it has no part in the steps, or is done.
        step: steps done.
        since: when the last of them was done, in seconds since 1970.
        at: when the sign was given.
        place: the line of code that the main thread was in; the innermost of the user's own, if there is one.
        in_torch: whether the innermost line was torch's, as where a rank waits for others.
    """

    rank: int
    machine: str
    process: int
    begun: float
    state: str
    step: int
    since: float
    at: float
    place: str
    in_torch: bool

    @classmethod
    def now(cls, rank: int, state: str, step: int, since: float) -> Pulse:
        """That of this process."""
        lines = _lines_of_main_thread()
        return cls(
            rank=rank,
            machine=machine(),
            process=os.getpid(),
            begun=psutil.Process().create_time(),
            state=state,
            step=step,
            since=since,
            at=time.time(),
            place="{}:{}".format(*next((line for line in lines if is_users_file(line[0])), lines[0])),
            in_torch=lines[0][0].startswith(TORCH),
        )

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, as far as this machine can tell."""
        return self.machine == machine() and not lives(self.process)

    @property
    def exit_status(self) -> int | None:
        """How its process ended, minus the number of a signal that killed it; None: that can no longer be read."""
        try:
            *_, state = Path(f"/proc/{self.process}/stat").read_text("ascii", "replace").rpartition(")")
            word = int(state.split()[-1])  # as wait() gives it, for who may see it
        except (OSError, ValueError):
            return None
        return os.waitstatus_to_exitcode(word) if state.split()[0] == "Z" else None

    def kill(self) -> None:
        """Kill its process, stopped or not, if it is of this machine."""
        with suppress(psutil.Error):
            process = psutil.Process(self.process)
            if self.machine == machine() and process.create_time() == self.begun:
                process.kill()


@dataclass(frozen=True)
class Culprit:
    """A rank that the others waited for in vain, with what is known about it."""

    rank: int
    type: str
    message: str


def machine() -> str:
    """What tells apart the places where a number means a process."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def pulse_key(attempt: int, rank: int) -> str:
    """Where the others find the last sign of a rank."""
    return f"pulse/{attempt}/{rank}"


def leave_pulse(store: Store, attempt: int, pulse: Pulse) -> None:
    """Give a sign."""
    store.set(pulse_key(attempt, pulse.rank), json.dumps(asdict(pulse)))


def pulse_of(store: Store, attempt: int, rank: int) -> Pulse | None:
    """The last sign of a rank; None: it never gave one."""
    key = pulse_key(attempt, rank)
    return Pulse(**json.loads(store.get(key))) if store.check([key]) else None


def gone(pulses: Sequence[Pulse]) -> Culprit | None:
    """The first rank of this machine whose process ended, although it worked."""
    for pulse in pulses:
        if pulse.state == WORKS and pulse.is_gone:
            how = ended(pulse.exit_status)
            return Culprit(pulse.rank, LOST, f"rank {pulse.rank} {how}")
    return None


def ended(exit_status: int | None) -> str:
    """How a process ended.

    >>> ended(-9), ended(3)
    ('was killed by SIGKILL', 'ended with exit status 3, without a word')
    """
    if exit_status is None:
        return "ended without a word (killed, or out of memory?)"
    if exit_status < 0:
        return f"was killed by {signal.Signals(-exit_status).name}"
    return f"ended with exit status {exit_status}, without a word"


def culprit(ranks: int, before: Sequence[Pulse], after: Sequence[Pulse]) -> Culprit | None:
    """The rank that the others waited for, if one stands out.

    Args:
        ranks: that there should be.
        before: the last sign of each that gave one.
        after: those of some seconds later.
    """
    if absent := sorted(set(range(ranks)) - {pulse.rank for pulse in after}):
        return Culprit(absent[0], LOST, f"rank {absent[0]} never arrived")
    works = [pulse for pulse in after if pulse.state == WORKS]
    for pulse in works:
        if pulse in before:
            return silent(pulse, time.time() - pulse.at, after)
    busy = sorted(works, key=lambda pulse: (pulse.in_torch, pulse.step, pulse.rank))
    return _busy(busy[0]) if busy else None


def silent(pulse: Pulse, seconds: float, all_ranks: Sequence[Pulse] = ()) -> Culprit:
    """A rank that has given no sign for ``seconds``, with those of its machine that gave none since either."""
    beside = [p for p in all_ranks if p.machine == pulse.machine and p.state != APART]
    ranks = sorted({pulse.rank, *(p.rank for p in beside if p.at < pulse.at + SAME_S)})
    if len(ranks) == 1:
        who, why = f"rank {pulse.rank} has", "stopped, or its machine is gone"
    else:
        host = pulse.machine.partition(" ")[0]
        who, why = f"ranks {', '.join(map(str, ranks))} on {host} have", f"{host} is gone or cut off"
    return Culprit(ranks[0], "RankHung", f"{who} not answered for {seconds:.0f} s: {why}")


def cut_off(host: str, seconds: float) -> Culprit:
    """Rank 0, where the store that is kept with it has not answered for ``seconds``."""
    message = f"the store at {host}, where rank 0 is, has not answered for {seconds:.0f} s: {host} is gone or cut off"
    return Culprit(0, "RankHung", message)


def _busy(pulse: Pulse) -> Culprit:
    what = (
        f"has been in step {pulse.step + 1} for {pulse.at - pulse.since:.0f} s"
        if pulse.step
        else f"was busy before the first step was done for {pulse.at - pulse.since:.0f} s"
    )
    return Culprit(
        pulse.rank,
        "RankHung",
        f"rank {pulse.rank} {what}, at {pulse.place}, and the others waited for it as long as launch.timeout_s allows",
    )


def _lines_of_main_thread() -> list[tuple[str, int]]:
    """Files and line numbers, from the innermost outwards; at least one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented, for debuggers
    lines = []
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return lines or [("", 0)]
