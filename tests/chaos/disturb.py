"""One run from its first start to its end, with a fault now and then."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from launcher.checkpoints import store
from tests.chaos.damage import newest, spoil
from tests.chaos.live import HangError, Job, Live
from tests.chaos.schedule import DAMAGE, FULL, KILL, LATEST_S, STARTING_S, STOP, TERM, USR1, Fault, Start

SIGNALS = {KILL: signal.SIGKILL, TERM: signal.SIGTERM, USR1: signal.SIGUSR1}
TOO_SMALL = 100_000
"""Bytes that a file may have where a checkpoint does not fit, but other files do."""
NO_ROOM = 0.3
"""The part of full disks that have no room for anything."""
MOST_UNKEPT = 4
"""Checkpoints that are due while the disk is full of a run that goes on; a quick one would reach its end otherwise."""
FUTILE = 4
"""Starts one after the other that train nothing, after which it is over."""
TOLD_S = 30.0
"""Seconds for a run to tell that a checkpoint was not kept, or was."""


@dataclass
class Hit:
    """What a fault did.

    Attributes:
        fault: that came.
        where: what it hit.
        start: of the command, counted from 0, that it hit.
        attempt: of the launcher; -1 where no step had been told of.
        at: seconds of the monotonic clock when it was over.
        ended: whether it ended the ranks.
        lost: steps that were done, and are to be done again.
        next_s: seconds to the next step that is told of; None where nobody waits for one.
    """

    fault: Fault
    where: str
    start: int
    attempt: int
    at: float
    ended: bool = False
    lost: int = 0
    next_s: float | None = None


class Disturbed:
    """A run that is disturbed until it finishes.

    Args:
        job: what is run.
        faults: in the order in which they come.
        starts: how it is started each time.
        until: seconds of the monotonic clock after which no more faults come.
        say: is told what happens, a line each.
    """

    def __init__(
        self, job: Job, faults: Iterable[Fault], starts: Iterator[Start], until: float, say: Callable[[str], None]
    ) -> None:
        self.job = job
        self.hits: list[Hit] = []
        self.problems: list[str] = []
        self.worlds: list[int] = []
        self._faults, self._starts, self._until, self._say = deque(faults), starts, until, say
        self._waiting: list[Fault] = []  # for the run to be down
        self._damaged: list[tuple[int, Hit]] = []  # while the run was up
        self._root = job.run_dir / store.FOLDER
        self._next_step = 1

    def run(self) -> None:
        """Start and disturb the run until it has finished, or cannot."""
        futile = 0
        while futile < FUTILE:
            live = self._launch()
            hit = None
            try:
                hit = self._disturb(live)
            except HangError as error:
                self._problem(live, f"hangs: {error}")
                live.kill()
            self._bury(live, hit)
            if live.process.returncode == 0 and self.job.status().get("state") == "finished":
                return
            futile = 0 if live.lines else futile + 1
        self._say("given up")

    def _launch(self) -> Live:
        start, number = next(self._starts), len(self.worlds)
        self.worlds.append(start.world)
        self._say(f"start {number}: {start}")
        return Live(self.job, number, start, self.job.run_dir.parent / f"start_{number:04d}.log")

    def _disturb(self, live: Live) -> Hit | None:
        """Let faults come until the launcher is gone; the one that ended it."""
        fresh = True
        while self._faults and time.monotonic() < self._until:
            fault = self._faults[0]
            early = fault.early and fresh and self.hits != []
            fresh = False
            if early:
                time.sleep(fault.delay_s * STARTING_S / LATEST_S)
            elif not live.reaches(fault.step):
                return self._ended_late(live)
            else:
                time.sleep(fault.delay_s)
            self._faults.popleft()
            hit = self._inflict(live, fault, early)
            if hit is None:
                continue
            self._say(f"  step {live.last_step}: {fault.kind} on {hit.where}{' while it starts' * early}")
            self.hits.append(hit)
            if hit.ended and self._is_gone(live, hit):
                return hit
        live.reaches(self.job.steps + 1)
        return self._ended_late(live)

    def _ended_late(self, live: Live) -> Hit | None:
        """The full disk that ended the run some time after it was, if it was one."""
        full = [hit for hit in self.hits if hit.fault.kind == FULL and hit.start == live.number]
        if not full or live.process.returncode == 0:
            return None
        full[-1].ended = True
        return full[-1]

    def _inflict(self, live: Live, fault: Fault, early: bool) -> Hit | None:
        hit = Hit(fault, "", live.number, live.attempt, time.monotonic())
        if fault.kind in DAMAGE:
            return self._spoil(fault, hit)
        if fault.kind == FULL:
            self._fill(live, hit)
            return hit
        processes = [live.process.pid, *live.children()] if early else live.processes()
        victim = int(fault.victim * len(processes))
        hit.where = "the launcher" if victim == 0 else f"rank {victim - 1}"
        if fault.kind == STOP:
            live.send(processes[victim], signal.SIGSTOP)
            time.sleep(fault.hold_s)
            live.send(processes[victim], signal.SIGCONT)
        else:
            live.send(processes[victim], SIGNALS[fault.kind])
        hit.at = time.monotonic()
        hit.ended = fault.kind != STOP
        return hit

    def _spoil(self, fault: Fault, hit: Hit) -> Hit | None:
        """Spoil a checkpoint at once, or keep that for when the run is down."""
        step = None if fault.down else spoil(self._root, fault)
        if step is None:
            self._waiting.append(fault)
            return None
        hit.where = f"step {step}, while it trains"
        self._damaged.append((step, hit))
        return hit

    def _fill(self, live: Live, hit: Hit) -> None:
        """Let the disk be full until the run is over, or has told that it goes on without a checkpoint."""
        fault, size = hit.fault, 0 if hit.fault.place < NO_ROOM else TOO_SMALL
        hit.where = f"files of more than {size} bytes"
        live.limit_files(size)
        enough = live.last_step + MOST_UNKEPT * self.job.every_steps

        def gone() -> bool:
            return live.is_over or live.attempt > hit.attempt

        def gone_or_far() -> bool:
            return gone() or live.last_step >= enough

        def told() -> bool:
            return gone() or self.job.status().get("checkpoint_error") is not None

        if not live.start.warns:
            live.ends_or_restarts()
        elif size and not self.job.ledger.wait_for(told, TOLD_S):
            self._problem(live, "does not tell that the disk is full")
        self.job.ledger.wait_for(gone_or_far, fault.hold_s)
        live.limit_files(-1)
        hit.at, hit.ended, step = time.monotonic(), gone(), live.last_step

        def kept_since() -> bool:
            """The status may be one from before the disk was full, when it could be written."""
            status = self.job.status()
            return status.get("checkpoint_error") is None and (status.get("checkpoint_step") or 0) >= step

        if not hit.ended:
            self.job.ledger.wait_for(lambda: gone() or kept_since(), TOLD_S)

    def _is_gone(self, live: Live, hit: Hit) -> bool:
        """Whether the launcher is gone after a fault; else the ranks were started anew, or were not hit."""
        if hit.fault.kind != FULL:
            live.ends_or_restarts()
        if not live.is_over:
            again = [line.step for line in live.lines if line.attempt == live.attempt]
            self._count(live, hit, min(again) - 1)
        return live.is_over

    def _count(self, live: Live, hit: Hit, kept: int) -> None:
        """Count what was lost by a fault that ended the ranks, and by damage that came before it."""
        done = max((line.step for line in live.lines if line.attempt == hit.attempt), default=0)
        if not done:
            return
        for step, damaged in sorted(self._damaged, key=lambda pair: pair[0]):
            if step > kept:
                damaged.lost, kept = step - kept, step
        self._damaged.clear()
        hit.lost = done - kept
        self._judge(live, hit)

    def _judge(self, live: Live, hit: Hit) -> None:
        if hit.fault.kind == FULL and live.start.warns:
            return  # checkpoint.on_error=warn asks for it
        every, graceful = self.job.every_steps, hit.fault.kind in (TERM, USR1)
        if hit.lost > (0 if graceful else every):
            self._problem(live, f"{hit.lost} steps lost by {hit.fault.kind} on {hit.where}")

    def _bury(self, live: Live, hit: Hit | None) -> None:
        """After the launcher is gone: nothing may be left, and the run folder must tell what happened."""
        left, seconds = live.left_after()
        if left:
            self._problem(live, f"{len(left)} processes are left after {seconds:.0f} s")
            live.kill()
        time.sleep(0.1)  # for the last lines
        first = min(((line.attempt, line.step) for line in live.lines), default=(1, 0))
        if first[0] == 0 and first[1] != self._next_step:
            self._problem(live, f"went on at step {first[1]}, not {self._next_step}")
        status, state = live.process.returncode, self.job.status()
        error = state.get("error")
        self._say(
            f"  ended with {status}, {state.get('state')} at step {state.get('step')} of {live.last_step}, "
            f"gone {seconds:.1f} s later{f': {error}' if error else ''}"
        )
        if hit is not None:
            self._count(live, hit, newest(self._root))
        elif status != 0:
            self._problem(live, f"ended with {status} by itself")
        self._next_step = newest(self._root) + 1
        if status != 0:
            self._spoil_while_down(live)

    def _spoil_while_down(self, live: Live) -> None:
        for fault in tuple(self._waiting):
            before, step = newest(self._root), spoil(self._root, fault)
            if step is None:
                continue
            self._waiting.remove(fault)
            self._next_step = newest(self._root) + 1
            hit = Hit(fault, f"step {step}, while it is down", live.number, live.attempt, time.monotonic(), ended=False)
            hit.lost = before - newest(self._root)
            self._say(f"  {fault.kind} of {hit.where}")
            self.hits.append(hit)

    def _problem(self, live: Live, text: str) -> None:
        self.problems.append(f"start {live.number} ({live.start}): {text}")
        self._say(f"  PROBLEM: {text}")


def time_next_steps(disturbed: Disturbed) -> None:
    """Note how long it took to the next step after each fault."""
    lines = disturbed.job.ledger.lines
    for hit in disturbed.hits:
        if hit.ended:
            later = (line.at for line in lines if (line.start, line.attempt) > (hit.start, hit.attempt))
        elif hit.fault.kind == STOP:
            later = (line.at for line in lines if line.at > hit.at)
        else:
            continue
        hit.next_s = min((at - hit.at for at in later), default=None)
