"""torch's elastic agent, which starts ranks and watches over them, as one that leaves signals to the ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from launcher.processes.errors import NEVER_RETRIED
from launcher.processes.signals import Signals, held_back

__all__ = ["Agent", "WorkerSpec", "logs"]

HOLD_S = 0.5
"""Seconds for which the other ranks can see what killed one."""


class Agent(LocalElasticAgent):
    """An agent that passes signals on to its ranks, and then waits for them to end by themselves.

    Ranks that end because of the settings, with a checkpoint, or after a signal are not started again.

    Args:
        ranks: what to start.
        logs: where what they print goes.
        signals: of this process.
        waits: says that the other nodes are waited for, if that takes long.
    """

    def __init__(
        self,
        ranks: WorkerSpec,
        logs: DefaultLogsSpecs,
        signals: Signals,
        waits: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(ranks, logs, log_line_prefix_template="rank ${rank}: ")
        self._signals, self._waits = signals, waits

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if not self._signals.passed_on:
            self._signals.obey()
        with self._waits():
            super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._signals.pass_on(())
        with held_back():  # the ranks let them come when they can hear them
            processes: dict[int, int] = super()._start_workers(worker_group)
        self._signals.pass_on(processes.values())
        return processes

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if any(was_killed(worker.id) for worker in worker_group.workers):
            time.sleep(HOLD_S)
        result: RunResult = super()._monitor_workers(worker_group)
        if self._signals.passed_on or any(f.exitcode in NEVER_RETRIED for f in result.failures.values()):
            self._remaining_restarts = 0
        return result


def was_killed(process: int) -> bool:
    """Whether a signal killed a child of this process, which nobody waited for yet."""
    if sys.platform != "linux":
        return False
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
    return False


def logs(folder: str | None, redirects: int, tee: int) -> DefaultLogsSpecs:
    """Where what ranks print goes, besides or instead of the console: torch's numbers 0 .. 3; None: nowhere."""
    return DefaultLogsSpecs(folder or os.devnull, Std(redirects), Std(tee))
