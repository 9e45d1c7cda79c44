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
    # By its address the agent is found also where the name of this host does not resolve.
    flags = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "launcher"]
    os.execv(sys.executable, [*torchrun, *words])  # noqa: S606 - no shell is wanted
