"""What a rank keeps an eye on while it works: the process that launched it, and what the other ranks say."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress

from torch.distributed import DistError, Store

from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED
from launcher.processes.failures import Failure, failure_key
from launcher.processes.group import wish_key
from launcher.processes.signals import GRACE_S, ORPHANED, Signals, Wish, end_now

LOOK_S = 1.0
ORPHAN_S = 7.0
"""Seconds that a rank has to keep a checkpoint once its launcher is gone."""


class Watch(threading.Thread):
    """Looks once a second, for as long as the process does not end by itself.

    Where the launcher is gone, the rank keeps a checkpoint and is gone itself within ``ORPHAN_S`` seconds. Where
    another rank failed, it gets ``GRACE_S`` seconds to notice: a collective that waits for one that is gone may never
    end.

    Args:
        rank: this process.
        signals: told what asks for the end.
        launcher: the process that started this one.
    """

    def __init__(self, rank: Rank, signals: Signals, launcher: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._rank = rank
        self._signals = signals
        self._launcher = launcher
        self._store: Store | None = None

    def listen_to(self, store: Store) -> None:
        """From here on other ranks may say something."""
        if self._rank.world_size > 1:
            self._store = store.clone()  # the main thread may wait in its own for long

    def run(self) -> None:
        """Look until the process ends by itself."""
        while not self._signals.over:
            if self._rank.has_launcher and os.getppid() != self._launcher:
                self._end_as_orphan()
            if self._store is not None:
                with suppress(DistError, RuntimeError):  # whoever keeps the store is gone; that shows elsewhere
                    self._look_at_others(self._store)
            time.sleep(LOOK_S)

    def _end_as_orphan(self) -> None:
        self._signals.note(Wish(ORPHANED, self._rank.rank))
        if self._signals.notes:
            time.sleep(ORPHAN_S)
        end_now(FAILED)

    def _look_at_others(self, store: Store) -> None:
        wish, failure = wish_key(self._rank.attempt), failure_key(self._rank.attempt)
        if store.check([wish]):
            self._signals.note(Wish(**json.loads(store.get(wish))))
        if store.check([failure]):
            first = Failure(**json.loads(store.get(failure)))
            time.sleep(GRACE_S)
            if not self._signals.over:
                end_now(first.exit_status)
