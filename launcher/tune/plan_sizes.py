"""The micro-batch sizes that the plan of a run has a use for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from launcher.configure.devices import plan_of
from launcher.configure.schema import RunConfig
from launcher.processes.errors import SettingsError

MOST = 1024
"""A share is cut into so many micro-batches at most, where it is asked what sizes there are."""


def with_size(run: RunConfig, rows: int | None) -> RunConfig:
    """The settings with ``rows`` for ``batch.max_per_device``."""
    return replace(run, batch=replace(run.batch, max_per_device=rows))


def share_of(run: RunConfig, world_size: int) -> int:
    """Rows of the largest share."""
    return sum(plan_of(with_size(run, None), world_size).micro_batches(0))


def sizes_of(run: RunConfig, world_size: int) -> tuple[int, ...]:
    """The micro-batch sizes into which a largest share can be cut, smallest first; the last is the share itself."""
    share, grain = share_of(run, world_size), grain_of(run, world_size)
    sizes = set()
    for pieces in range(1, min(MOST, share // grain) + 1):
        rows = math.ceil(share / pieces)
        try:
            sizes.add(plan_of(with_size(run, rows), world_size).micro_batches(0)[0])
        except SettingsError:  # it would cut below batch.min_per_device, or into pieces where none may be
            continue
    return tuple(sorted(sizes))


def grain_of(run: RunConfig, world_size: int) -> int:
    """What micro-batches are multiples of: the rows of a shard, where shards are in force."""
    return plan_of(with_size(run, None), world_size).largest_shard or 1


def useful(sizes: Sequence[int], rows: int) -> int | None:
    """The size of the micro-batches with ``rows`` for ``batch.max_per_device``; None: the plan refuses that."""
    return max((size for size in sizes if size <= rows), default=None)


def best_size(sizes: Sequence[int], target: int, fits: int) -> int | None:
    """The size to recommend: one that is cut from a share, as large as ``target`` where there is such a one.

    Args:
        sizes: into which a share can be cut, smallest first.
        target: what is wanted.
        fits: the largest that fits.

    Returns:
        ``target`` itself where that is no smaller than a share; None: no size that fits can be cut.
    """
    if target >= sizes[-1]:
        return target
    return min((s for s in sizes if target <= s <= fits), default=useful(sizes, fits))
