"""Starting the ranks of this node from one process, by torch's elastic agent."""

from __future__ import annotations

import logging
import sys
import uuid

from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, FINISHED, WRONG_SETTINGS, SettingsError


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


def start_processes(count: int, words: list[str]) -> int:
    """Run ``count`` ranks with the same command line under torch's elastic agent; the first failure's exit status."""
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415 - slow to import
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks tell what went wrong
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",  # found also where the name of this host does not resolve
        max_restarts=0,
    )
    try:
        elastic_launch(agent, sys.executable)("-m", "launcher", *words)
    except ChildFailedError as error:
        return FAILED if error.get_first_failure()[1].exitcode != WRONG_SETTINGS else WRONG_SETTINGS
    except (SignalException, KeyboardInterrupt):
        return FAILED
    return FINISHED
