"""Starting the ranks of this node from one process, by torch's elastic agent."""

from __future__ import annotations

import logging
import os
import sys
import uuid

from launcher.processes.early import ENDING
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, FINISHED, NEVER_RETRIED, PREEMPTED, SettingsError
from launcher.processes.signals import Signals

TORCH_HEARS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


def processes_of(asked: int | None, rank: Rank) -> int:
    """How many ranks the run has.

    Args:
        asked: ``launch.processes``.
        rank: this process.

    Raises:
        SettingsError: where torchrun or Slurm started another number than was asked for.
    """
    if asked is None or asked == rank.local_world_size:
        return rank.world_size
    if rank.started_by != "python":
        raise SettingsError(
            f"launch.processes={asked}, but {rank.started_by} started {rank.local_world_size} on this node; "
            "leave launch.processes out"
        )
    return asked


def starts_ranks(asked: int | None, max_restarts: int, rank: Rank) -> bool:
    """Whether this process starts the ranks, rather than being one.

    Args:
        asked: ``launch.processes``.
        max_restarts: ``launch.max_restarts``.
        rank: this process.

    Raises:
        SettingsError: where restarts are asked for that nobody would do.
    """
    option = f"launch.max_restarts={max_restarts}"
    if rank.started_by == "python":
        if max_restarts and asked is None:
            raise SettingsError(f"{option} is for ranks that launch.processes starts; set launch.processes")
        return asked is not None and (asked > 1 or max_restarts > 0)
    if max_restarts not in (0, rank.max_restarts):
        remedy = f", and give torchrun --max-restarts={max_restarts}" if rank.started_by == "torchrun" else ""
        raise SettingsError(
            f"{option} is for ranks that launch.processes starts, and {rank.started_by} started these; leave it "
            f"out{remedy}"
        )
    return False


def start_processes(count: int, words: list[str], max_restarts: int, signals: Signals) -> int:
    """Run ``count`` ranks with the same command line under torch's elastic agent; the first failure's exit status.

    Signals go to the ranks, which are given the time that they need.
    """
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415 - slow to import
    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry  # noqa: PLC0415

    from launcher.processes.agent import Agent, WorkerSpec  # noqa: PLC0415

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks tell what went wrong
    os.environ[TORCH_HEARS] = "SIGQUIT"
    here = "127.0.0.1"  # found also where the name of this host does not resolve
    meeting = RendezvousParameters("c10d", f"{here}:0", uuid.uuid4().hex, 1, 1, local_addr=here)
    ranks = WorkerSpec(
        role="rank",
        local_world_size=count,
        entrypoint=sys.executable,
        args=("-m", "launcher", *words),
        rdzv_handler=registry.get_rendezvous_handler(meeting),
        max_restarts=max_restarts,
        monitor_interval=0.1,
        local_addr=here,
    )
    try:
        ended = Agent(ranks, signals).run()
    except SignalException as error:  # none that ranks know, or a torch that hears them all until the ranks are there
        return PREEMPTED if error.sigval in ENDING else FAILED
    finally:
        ranks.rdzv_handler.shutdown()
    if not ended.is_failed():
        return FINISHED
    status = min(ended.failures.values(), key=lambda failure: failure.timestamp).exitcode
    return status if status in NEVER_RETRIED else FAILED
