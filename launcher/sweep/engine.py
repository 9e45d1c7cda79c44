"""The jobs of a sweep, from the first to the last: started as devices are free, watched, and written down."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.observe.status import Status, mark_of_status, read_status
from launcher.processes import errors
from launcher.processes.forked import NOT_STARTED
from launcher.processes.signals import Signals, Terminated
from launcher.sweep.crew import Crew, Team
from launcher.sweep.halt import LauncherGoneError, LeftAlone, why_none_can_start
from launcher.sweep.jobs import DONE, FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, STOPPED, Job, Record, Source, View
from launcher.sweep.ledger import Ledger
from launcher.sweep.outcome import (
    cause_of,
    ended_as,
    kills_for_memory,
    last_words,
    leave_end,
    printed,
    told_by,
    value_of,
)

LOOK_S = 0.05
STATUS_S = 0.5
GRACE_S = 30.0
"""Seconds that a job has to keep a checkpoint when it is asked to end."""
LINGER_S = 20.0
"""Seconds that the ranks of a job have to end after the first of them failed."""
LOST_S = 5.0
"""Seconds after which a rank that was killed is gone, although nobody is there any more to say so."""


@dataclass
class Running:
    """A job that runs.

    Attributes:
        job: which.
        team: its processes.
        record: what is known of it.
        devices: those it has.
        began: when its first attempt did, in seconds of the monotonic clock.
        attempt: how often its processes were started before.
        failed_first: rank and status of the first that did not end well.
        kill_at: when it is killed.
        gone_at: when it counts as gone, although not all ranks said so.
        ends_as: the state in which it ends, and why, where the sweep asked for it.
        status_at: when its status is read next.
        kills_before: processes that the system had killed for memory when it began.
        printed_before: bytes that its console.log had when its processes were started.
        status_before: the mark of status.json when its processes were started; what that says was said before them.
    """

    job: Job
    team: Team
    record: Record
    devices: tuple[str, ...]
    began: float
    attempt: int = 0
    failed_first: tuple[int, int] | None = None
    kill_at: float | None = None
    gone_at: float = math.inf
    ends_as: tuple[str, str] | None = None
    status_at: float = 0.0
    kills_before: int = field(default_factory=kills_for_memory)
    printed_before: int = 0
    status_before: object = None

    def ask_to_end(self, state: str, why: str) -> None:
        """Once: with a checkpoint if it can, and killed if it does not."""
        if self.ends_as is None:
            self.ends_as, self.kill_at = (state, why), time.monotonic() + GRACE_S
            self.team.tell(signal.SIGTERM)

    def kill(self, now: float) -> None:
        """It had its time."""
        self.kill_at, self.gone_at = None, now + LOST_S
        if self.ends_as:
            state, why = self.ends_as
            self.ends_as = (state, "; ".join(filter(None, (why, "it was killed, since it did not end by itself"))))
        self.team.tell(signal.SIGKILL)


class Unseen:
    """Nobody looks."""

    def show(self, records: list[Record]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@dataclass
class Engine:
    """Carries out the jobs of a source.

    Attributes:
        crew: starts the processes.
        ledger: of the sweep.
        signals: ask for the end of the sweep.
        order: leaves a job's settings where its processes read them.
        metric: ``sweep.metric``.
        timeout_s: ``sweep.job_timeout_s``.
        most_failures: no more jobs are started after so many failed.
        view: what the user sees.
        halted: why no more jobs are started, as all would end in the same way; empty: they are.
    """

    crew: Crew
    ledger: Ledger
    signals: Signals
    order: Callable[[Job], Path]
    metric: str | None = None
    timeout_s: float | None = None
    most_failures: float = float("inf")
    view: View = field(default_factory=Unseen)
    halted: str = field(default="", init=False)
    _running: list[Running] = field(default_factory=list, init=False)
    _twins: list[Record] = field(default_factory=list, init=False)
    _next: Job | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _unwritten: str = field(default="", init=False)
    _untold: list[Record] = field(default_factory=list, init=False)

    def run(self, source: Source) -> None:
        """Run jobs until the source has no more, too many failed, or a signal asks for the end."""
        heard = LeftAlone(source, self.ledger.sweep_dir, self.halted)
        try:
            self._fill(heard)
            while self._running:
                for running in list(self._running):
                    self._look_at(running, heard)
                self.view.show(self.ledger.records)
                time.sleep(LOOK_S)
                self._fill(heard)
            self._heed(heard)
            self.view.show(self.ledger.records)
        except Terminated:
            self._break_off()
            raise
        finally:
            for running in self._running:
                running.team.close()

    def _break_off(self) -> None:
        """Kill the jobs that run, and leave word that they may go on."""
        for running in self._running:
            running.team.close()
            leave_end(running.job.run_dir, PREEMPTED, "")
            self.ledger.note(replace(running.record, state=PREEMPTED))
        with suppress(OSError):
            self.ledger.write(PREEMPTED)

    def _fill(self, source: LeftAlone) -> None:
        """Start jobs while there is room."""
        self._heed(source)
        while self._may_start() and not source.halted:
            self._next = self._next or source.ask()
            if self._next is None:
                return
            if not self._known(self._next, source):
                devices = self.crew.take(self._next)
                if devices is None:
                    return
                self._start(self._next, devices, source)
            self._next = None

    def _heed(self, source: LeftAlone) -> None:
        """Say once why no more jobs are started."""
        if source.halted and not self.halted:
            self.halted = source.halted
            self.view.say(self.halted)

    def _may_start(self) -> bool:
        room = len(self._running) < self.crew.parallel
        return room and not self.signals.wish and self._failures < self.most_failures

    def _known(self, job: Job, source: Source) -> bool:
        """Whether a job's results are there, or will be."""
        record, twin = self.ledger.of(job), self.ledger.twin_of(job)
        if record.state in DONE:
            source.tell(record)
            return True
        if twin is None:
            return False
        self.view.say(f"job {job.number} has the settings of job {twin.number}, whose results it takes")
        self._twins.append(replace(record, same_as=twin.number))
        self._settle_twins(source)
        return True

    def _settle_twins(self, source: Source) -> None:
        by_number = {record.number: record for record in self.ledger.records}
        running = {r.job.number for r in self._running}
        for twin in list(self._twins):
            first = by_number[twin.same_as] if twin.same_as is not None else twin
            if first.number not in running and first.attempts:
                self._twins.remove(twin)
                self._note(
                    replace(
                        first,
                        number=twin.number,
                        overrides=twin.overrides,
                        same_as=first.number,
                        seconds=0.0,
                        attempts=0,
                        devices=(),
                    ),
                    source,
                )

    def _start(self, job: Job, devices: tuple[str, ...], source: LeftAlone) -> None:
        known = self.ledger.of(job)
        record = replace(
            known, state=RUNNING, devices=devices, cause="", value=None, same_as=None, attempts=known.attempts + 1
        )
        self._write(record)  # first: whoever comes later is to know whose folder it is
        before, had_printed = mark_of_status(job.run_dir), printed(job.run_dir)
        try:
            team = self._team(job, devices, 0)
        except (*NOT_STARTED, LauncherGoneError) as error:
            self.crew.give_back(devices)
            source.halted = why_none_can_start(error, job.run_dir)
            if source.halted:
                self._write(known)
                return
            self._note(replace(record, state=FAILED, cause=f"it could not be started: {error}"), source)
            return
        began = time.monotonic()
        self._running.append(
            Running(job, team, record, devices, began, printed_before=had_printed, status_before=before)
        )

    def _team(self, job: Job, devices: tuple[str, ...], attempt: int) -> Team:
        return self.crew.start(job, self.order(job), devices, attempt)

    def _look_at(self, running: Running, source: LeftAlone) -> None:
        now = time.monotonic()
        self._ask_to_end(running, now)
        statuses = running.team.statuses()
        bad = [(rank, status) for rank, status in statuses.items() if status]
        if bad and running.failed_first is None:
            running.failed_first = bad[0]
            running.kill_at = min(running.kill_at or now + LINGER_S, now + LINGER_S)
        if running.kill_at is not None and now > running.kill_at:
            running.kill(now)
        if len(statuses) == running.job.world_size or now > running.gone_at:
            self._end(running, source)
        elif now > running.status_at:
            running.status_at = now + STATUS_S
            self._note_progress(running, source)

    def _ask_to_end(self, running: Running, now: float) -> None:
        if self.signals.wish:
            running.ask_to_end(PREEMPTED, f"the sweep was ended by {self.signals.wish.by}")
        if self.timeout_s is not None and now - running.began > self.timeout_s:
            running.ask_to_end(FAILED, f"ran past sweep.job_timeout_s={self.timeout_s:g}")

    def _note_progress(self, running: Running, source: Source) -> None:
        status = read_status(running.job.run_dir)
        running.record = _with(running.record, status, time.monotonic() - running.began)
        self.ledger.note(running.record)
        if running.record.metrics and source.prunes(running.record):
            running.ask_to_end(PRUNED, "")

    def _end(self, running: Running, source: LeftAlone) -> None:
        running.team.close()
        said = mark_of_status(running.job.run_dir) != running.status_before
        status = told_by(read_status(running.job.run_dir), running.failed_first, said=said)
        state, cause = running.ends_as or (ended_as(status, running.failed_first), "")
        if state == FAILED and not running.ends_as:
            killed = kills_for_memory() - running.kills_before
            words = last_words(running.job.run_dir, running.printed_before)
            cause = cause_of(status, running.team.statuses(), running.failed_first, killed, words)
            try:
                if self._again(running):
                    return
            except (*NOT_STARTED, LauncherGoneError) as error:
                source.halted = source.halted or why_none_can_start(error, running.job.run_dir)
                cause = f"{cause}; it could not be started again: {error}"
                state = PREEMPTED if source.halted else state
        self._running.remove(running)
        self.crew.give_back(running.devices)
        record = _with(running.record, status, time.monotonic() - running.began)
        finished = status.state in (FINISHED, STOPPED)
        if finished:  # before it heard that it should end
            state, cause = status.state, ""
        else:
            leave_end(running.job.run_dir, state, cause, running.failed_first[0] if running.failed_first else 0)
        value = value_of(record.metrics, self.metric) if state in DONE else None
        self._note(replace(record, state=state, cause=cause, value=value), source)
        self._settle_twins(source)

    def _again(self, running: Running) -> bool:
        """Start the processes once more, where the job may be and a restart can change something."""
        rank_status = running.failed_first[1] if running.failed_first else errors.FAILED
        if running.attempt >= running.job.run.launch.max_restarts or rank_status in errors.NEVER_RETRIED:
            return False
        running.attempt += 1
        running.failed_first = running.kill_at = None
        running.gone_at = math.inf
        running.status_before, running.printed_before = (
            mark_of_status(running.job.run_dir),
            printed(running.job.run_dir),
        )
        running.team = self._team(running.job, running.devices, running.attempt)
        running.record = replace(running.record, attempts=running.record.attempts + 1)
        return True

    def _note(self, record: Record, source: Source) -> None:
        """A job is over; what is not written down is not told: both are to know the same when the sweep goes on."""
        self._failures += record.state == FAILED and record.same_as is None
        self._write(record)
        self._untold.append(record)
        while self._untold and not self._unwritten:
            source.tell(self._untold.pop(0))

    def _write(self, record: Record) -> None:
        self.ledger.note(record)
        try:
            self.ledger.write(RUNNING)
            self._unwritten = ""
        except OSError as error:  # the next one may find room
            if str(error) != self._unwritten:
                self.view.say(f"the sweep's file cannot be written: {error}; what is over now may run once more")
            self._unwritten = str(error)


def _with(record: Record, status: Status, seconds: float) -> Record:
    return replace(record, step=status.step, metrics=status.metrics, seconds=round(seconds, 3))
