"""Starting the ranks of this node from one process, by torch's elastic agent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError

from launcher.processes.agent import Agent, WorkerSpec, logs
from launcher.processes.early import ENDING
from launcher.processes.environment import LAUNCHER, OWN_LAUNCHER
from launcher.processes.errors import FAILED, FINISHED, NEVER_RETRIED, PREEMPTED, PlainError
from launcher.processes.meeting import Meeting
from launcher.processes.signals import Signals

Block: TypeAlias = AbstractContextManager[None]
Waits: TypeAlias = Callable[[str], Block]

TORCH_HEARS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


@dataclass(frozen=True)
class Launch:
    """The ranks that one process starts, and what becomes of them.

    Attributes:
        processes: ranks on this node.
        meeting: where this node meets the others.
        max_restarts: how often ranks are started again when one fails.
        monitor_interval_s: seconds between two looks at them.
        log_dir: folder for what they print; None: there is none.
        redirects: of that goes to ``log_dir`` and is not shown: 0 nothing, 1 stdout, 2 stderr, 3 both.
        tee: likewise, and is shown too.
    """

    processes: int
    meeting: Meeting
    max_restarts: int = 0
    monitor_interval_s: float = 0.1
    log_dir: str | None = None
    redirects: int = 0
    tee: int = 0


def start_processes(launch: Launch, words: list[str], signals: Signals, waits: Waits) -> int:
    """Run the ranks of this node with the same command line under torch's elastic agent.

    Signals go to the ranks, which are given the time that they need.

    Args:
        launch: the ranks.
        words: the command line.
        signals: of this process.
        waits: says of what is done in its block that it may take long.

    Returns:
        The exit status of the first failure on this node.

    Raises:
        PlainError: where the nodes do not meet.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks tell what went wrong
    os.environ[TORCH_HEARS] = "SIGQUIT"
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        return _run(launch, words, signals, partial(waits, launch.meeting.waiting))
    except SignalException as error:  # none that ranks know, or a torch that hears them all until the ranks are there
        return PREEMPTED if error.sigval in ENDING else FAILED
    except RendezvousClosedError:  # another node gave up, and its ranks have told why
        return FAILED
    except (RendezvousError, OSError) as error:
        raise PlainError(launch.meeting.why_not(error)) from error


def _run(launch: Launch, words: list[str], signals: Signals, waits: Callable[[], Block]) -> int:
    address = launch.meeting.address()
    with waits():
        handler = launch.meeting.enter(address)
    ranks = WorkerSpec(
        role=OWN_LAUNCHER,
        local_world_size=launch.processes,
        entrypoint=sys.executable,
        args=("-m", "launcher", *words),
        rdzv_handler=handler,
        max_restarts=launch.max_restarts,
        monitor_interval=launch.monitor_interval_s,
        local_addr=address,
        **launch.meeting.fixed_place,
    )
    try:
        ended = Agent(ranks, logs(launch.log_dir, launch.redirects, launch.tee), signals, waits).run()
    finally:
        handler.shutdown()
    if not ended.is_failed():
        return FINISHED
    status = min(ended.failures.values(), key=lambda failure: failure.timestamp).exitcode
    return status if status in NEVER_RETRIED else FAILED
