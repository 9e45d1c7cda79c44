"""What a rank keeps an eye on while it works: the process that launched it, and the other ranks."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch.distributed as dist

from launcher.processes.attempts import Attempt
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED
from launcher.processes.failures import LAST_WORDS_S, STEPPED, Failure, failure_key, first_failure, note_steps
from launcher.processes.group import wish_key
from launcher.processes.pulse import (
    APART,
    WAITS,
    WORKS,
    Culprit,
    Pulse,
    culprit,
    cut_off,
    gone,
    leave_pulse,
    pulse_of,
    silent,
)
from launcher.processes.signals import GRACE_S, ORPHANED, Signals, Wish, end_now, end_with_a_word, lives

LOOK_S = 1.0
LAST_LOOK_S = 0.25
ORPHAN_S = 7.0
"""Seconds that a rank has to keep a checkpoint once its launcher is gone."""
PATIENCE = 0.9
"""The part of ``launch.timeout_s`` for which a rank may be silent: it is to be named before collectives time out."""
INVESTIGATORS = 3


class Watch(threading.Thread):
    """Looks once a second, and gives a sign of life, for as long as the process does not end by itself.

    Where the launcher is gone, the rank keeps a checkpoint and is gone itself within ``ORPHAN_S`` seconds. Where
    another rank failed, it gets ``GRACE_S`` seconds to notice: a collective that waits for one that is gone may never
    end. While the run trains, each rank looks after the next one, and names it when it is silent for too long.

    Args:
        rank: this process.
        signals: told what asks for the end.
        launcher: the process that started this one.

    Attributes:
        signals: as given.
    """

    def __init__(self, rank: Rank, signals: Signals, launcher: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._rank = rank
        self.signals = signals
        self._launcher = launcher
        self._store: dist.Store | None = None
        self._attempt: Attempt | None = None
        self._state, self._step, self._since = WORKS, 0, time.time()
        self._tell: Callable[..., object] | None = None
        self._ranks, self._timeout_s = rank.world_size, math.inf
        self._seen: Pulse | None = None
        self._silent_s, self._looked_at = 0.0, time.monotonic()
        self._here: list[Pulse] = []
        self._told_of_steps = False
        self._answers, self._answers_seen = 0, 0
        self._deaf_s, self._ticked_at = 0.0, time.monotonic()
        self._store_patience_s = math.inf
        self._is_let_go = threading.Event()

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    def listen_to(self, store: dist.Store, rank: Rank, attempt: Attempt | None = None) -> None:
        """From here on other ranks may say something.

        Args:
            store: that the ranks meet at.
            rank: this process, as one of the attempt that all ranks belong to.
            attempt: tells the others, on rank 0 of several nodes.
        """
        self._rank, self._attempt = rank, attempt
        if self._rank.world_size > 1 or self._rank.has_launcher:
            self._store = store.clone()  # the main thread may wait in its own for long

    def tell_with(self, tell: Callable[..., object], timeout_s: float) -> None:
        """From here on ``tell`` tells the user what is found out, also that the store does not answer.

        Args:
            tell: given a ``Failure``, and ``store=None`` where there is none any more.
            timeout_s: ``launch.timeout_s``.
        """
        self._tell, self._store_patience_s = tell, _patience_s(timeout_s)

    def begin(self, ranks: int, timeout_s: float) -> None:
        """The steps begin.

        Args:
            ranks: that work.
            timeout_s: ``launch.timeout_s``.
        """
        self._ranks, self._timeout_s = ranks, timeout_s

    def reached(self, step: int) -> None:
        """A step is done."""
        self._step, self._since = step, time.time()

    def stand_apart(self) -> None:
        """This rank has no part in the steps, or is done: no other waits for it any more."""
        self._state = APART
        with suppress(dist.DistError, RuntimeError):
            self._give_sign()

    def blame(self, mine: Failure) -> Failure:
        """Name the rank that another's failure is to be put down to, if none says a word about it within seconds.

        Args:
            mine: what this rank saw of it.
        """
        self._state = WAITS
        store = self._store
        if store is None:
            return mine
        self._give_sign()
        if dead := self.blame_dead(mine):
            return dead
        order = store.add(f"investigators/{self._rank.attempt}", 1)
        ranks = range(self._ranks)
        before = self._pulses(ranks) if order <= INVESTIGATORS else []
        until = time.monotonic() + (LAST_WORDS_S if before else 2 * LAST_WORDS_S)
        while time.monotonic() < until:
            if store.check([failure_key(self._rank.attempt)]):
                return mine
            if dead := self.blame_dead(mine):  # a process may lose its connections some time before it is gone
                return dead
            time.sleep(LAST_LOOK_S)
        found = culprit(self._ranks, before, self._pulses(ranks)) if before else None
        lost = f"the ranks lost each other, although all of them answer; here it showed as: {mine.message}"
        return self._put_down_to(found) if found else replace(mine, message=lost)

    def blame_dead(self, mine: Failure) -> Failure | None:
        """Name a rank of this machine whose process has ended, if there is one and it left no word."""
        if self._store is None or self._store.check([failure_key(self._rank.attempt)]):
            return None
        found = gone(self._pulses(range(self._ranks)))
        return self._put_down_to(found) if found and found.rank != mine.rank else None

    def kill(self, first: Failure) -> None:
        """Kill a rank that was named by another, if it is of this machine: it will not end by itself."""
        if self._store is None or first.rank in (first.by, self._rank.rank):
            return
        pulse = pulse_of(self._store, self._rank.attempt, first.rank)
        if pulse is not None:
            pulse.kill()

    def run(self) -> None:
        """Look until the process ends by itself, and then that it does."""
        threading.Thread(target=self._keep_asking, name="store", daemon=True).start()
        while not self._is_let_go.is_set():
            if self._is_orphan and not self.signals.over:
                self._end_as_orphan()
            self._end_without_an_answer()
            self._is_let_go.wait(LOOK_S)

    @property
    def _is_orphan(self) -> bool:
        return self._rank.has_launcher and os.getppid() != self._launcher and not lives(self._launcher)

    def let_go(self) -> None:
        """The process needs neither the store nor the watch any more."""
        self._is_let_go.set()

    def _keep_asking(self) -> None:
        """In a thread of its own: a store on a machine that was cut off answers nothing for a quarter of an hour."""
        while not self._is_let_go.is_set():
            with suppress(dist.DistError, RuntimeError):  # whoever keeps the store is gone; that shows elsewhere
                if not self.signals.over:
                    self._look_at_others()
                elif self._store is not None:
                    self._store.check([STEPPED])
            self._answers += 1
            time.sleep(LOOK_S)

    def _end_without_an_answer(self) -> None:
        now, silent_still = time.monotonic(), self._answers == self._answers_seen
        # A tick that comes late says nothing: this process may have been the one that stood still.
        self._deaf_s = self._deaf_s + min(now - self._ticked_at, 2 * LOOK_S) if silent_still else 0.0
        self._answers_seen, self._ticked_at = self._answers, now
        if self._deaf_s > self._store_patience_s and self._tell is not None:
            lost = self._put_down_to(cut_off(self._rank.host, self._deaf_s))
            end_with_a_word(partial(self._tell, lost, store=None), FAILED)

    def _end_as_orphan(self) -> None:
        self.signals.note(Wish(ORPHANED, self._rank.rank))
        if self.signals.notes:
            time.sleep(ORPHAN_S)
        for pulse in self._here:
            if pulse.rank != self._rank.rank:
                pulse.kill()  # a stopped one would stay for ever
        end_now(FAILED)

    def _look_at_others(self) -> None:
        store = self._store
        if store is None:
            return
        if self._attempt is not None:
            self._attempt.answer()
        self._give_sign()
        if len(self._here) < self._rank.local_world_size:
            first = self._rank.rank - self._rank.local_rank
            self._here = self._pulses(range(first, first + self._rank.local_world_size))
        if self._step and not self._told_of_steps:
            note_steps(store)
            self._told_of_steps = True
        wish, failure = wish_key(self._rank.attempt), failure_key(self._rank.attempt)
        if store.check([wish]):
            self.signals.note(Wish(**json.loads(store.get(wish))))
        if store.check([failure]):
            self._end_after(Failure(**json.loads(store.get(failure))))
        if self._tell is not None and self._state == WORKS and self._timeout_s < math.inf:
            self._look_after_the_next(store, self._tell)

    def _end_after(self, first: Failure) -> None:
        self._store_patience_s = math.inf
        self.kill(first)
        time.sleep(GRACE_S)
        if not self.signals.over:
            end_now(first.exit_status)

    def _look_after_the_next(self, store: dist.Store, tell: Callable[..., object]) -> None:
        now, next_one = time.monotonic(), pulse_of(store, self._rank.attempt, (self._rank.rank + 1) % self._ranks)
        # A look that comes late says nothing: this process may have been the one that stood still.
        self._silent_s = self._silent_s + min(now - self._looked_at, 2 * LOOK_S) if next_one == self._seen else 0.0
        self._seen, self._looked_at = next_one, now
        if next_one is not None and next_one.state == WORKS and self._silent_s > _patience_s(self._timeout_s):
            named = self._put_down_to(silent(next_one, self._silent_s, self._pulses(range(self._ranks))))
            tell(first_failure(store, named, self._rank.attempt))

    def _put_down_to(self, found: Culprit) -> Failure:
        return Failure(found.rank, found.type, found.message, "", FAILED, by=self._rank.rank)

    def _give_sign(self) -> None:
        if self._store is not None:
            pulse = Pulse.now(self._rank.rank, self._state, self._step, self._since)
            leave_pulse(self._store, self._rank.attempt, pulse)

    def _pulses(self, ranks: Iterable[int]) -> list[Pulse]:
        """The last signs of those of ``ranks`` that gave one."""
        assert self._store is not None  # noqa: S101 - our own mistake
        found = [pulse_of(self._store, self._rank.attempt, rank) for rank in ranks]
        return [pulse for pulse in found if pulse is not None]


def _patience_s(timeout_s: float) -> float:
    return max(PATIENCE * timeout_s, 5 * LOOK_S)
