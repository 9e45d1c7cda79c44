"""How many threads each rank computes with."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil
import torch
from joblib import cpu_count

from launcher.processes.environment import Rank

VARIABLE = "OMP_NUM_THREADS"


def threads_per_rank(rank: Rank, asked: int | None, users_own: str | None, cores: int, *, exact: bool = False) -> int:
    """The number of threads for this rank.

    Args:
        rank: this process.
        asked: ``launch.threads_per_rank``; wins over everything.
        users_own: the user's own ``OMP_NUM_THREADS``; wins over the rule.
        cores: cores that this process may use.
        exact: ``batch.exact``: other threads round otherwise, so only what is asked for counts; one where nothing is.

    Returns:
        Otherwise the cores of its own, or the usable ones divided by the ranks of this node, at least one.
    """
    if asked is not None or exact:
        return asked or 1
    if users_own and users_own.isdecimal() and int(users_own) > 0:
        return int(users_own)
    return rank.own_cores or max(1, cores // rank.local_world_size)


def usable_cores() -> int:
    """Cores by affinity mask and cgroup quota, whichever is smaller."""
    return int(cpu_count())


def users_own_threads(rank: Rank, environment: Mapping[str, str]) -> str | None:
    """``OMP_NUM_THREADS`` as the user set it.

    torchrun writes 1 into the environment of its workers where the user set nothing, so under torchrun the variable
    counts only if torchrun was itself started with it.
    """
    value = environment.get(VARIABLE)
    if value is None or rank.started_by != "torchrun":
        return value
    try:
        return psutil.Process().parent().environ().get(VARIABLE)  # type: ignore[union-attr]
    except (psutil.Error, AttributeError):
        return value


def use_threads(count: int) -> None:
    """Compute with ``count`` threads, here and in child processes."""
    os.environ[VARIABLE] = str(count)
    torch.set_num_threads(count)
