"""Starting the ranks of this node from one process, by torchrun."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError


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


def start_processes(count: int, words: list[str]) -> NoReturn:
    """Become a torchrun that starts ``count`` ranks with the same command line."""
    sys.stdout.flush()
    sys.stderr.flush()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", "launcher"]
    os.execv(sys.executable, [sys.executable, *torchrun, *words])  # noqa: S606 - no shell is wanted
