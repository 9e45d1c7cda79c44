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
ORPHAN_S = 8.0
"""Seconds that a rank has to keep a checkpoint once its launcher is gone."""


class Watch(threading.Thread):
    """Looks once a second, for as long as the process does not end by itself.

    Where the launcher is gone, the rank keeps a checkpoint and is gone itself within ``ORPHAN_S`` seconds. Where
    another rank failed, it gets ``GRACE_S`` seconds to notice: a collective that waits for one that is gone may never
    end.

    Args:
        rank: this process.
        store: what the ranks meet at.
        signals: told what asks for the end.
    """

    def __init__(self, rank: Rank, store: Store, signals: Signals) -> None:
        super().__init__(name="watch", daemon=True)
        self._rank = rank
        self._store = store.clone()
        self._signals = signals
        self._launcher = os.getppid()

    def run(self) -> None:
        """Look until the process ends by itself."""
        while not self._signals.over:
            if self._rank.has_launcher and os.getppid() != self._launcher:
                self._end_as_orphan()
            with suppress(DistError, RuntimeError):  # whoever keeps the store is gone; that shows elsewhere
                self._listen_to_others()
            time.sleep(LOOK_S)

    def _end_as_orphan(self) -> None:
        self._signals.note(Wish(ORPHANED, self._rank.rank))
        time.sleep(ORPHAN_S)
        end_now(FAILED)

    def _listen_to_others(self) -> None:
        wish, failure = wish_key(self._rank.attempt), failure_key(self._rank.attempt)
        if self._store.check([wish]):
            self._signals.note(Wish(**json.loads(self._store.get(wish))))
        if self._store.check([failure]):
            first = Failure(**json.loads(self._store.get(failure)))
            time.sleep(GRACE_S)
            if not self._signals.over:
                end_now(first.exit_status)
