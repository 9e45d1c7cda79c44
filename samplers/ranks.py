"""Which rank of how many this process is, where the caller does not say."""

from __future__ import annotations

import os

from torch import distributed

from samplers.settings import whole_number

__all__ = ["resolve_ranks"]


def resolve_ranks(rank: object, world_size: object) -> tuple[int, int]:
    """Return (rank, world size): those given, else those of torch.distributed, else (0, 1).

    Raises:
        ValueError: only one of the two is given, the rank lies outside 0 <= rank < world_size, or both are left out
            while the environment says that several processes run but no process group exists.
    """
    if rank is None and world_size is None:
        return _ranks_of_this_process()
    if rank is None or world_size is None:
        raise ValueError(
            f"rank={rank!r} and world_size={world_size!r}: one is given without the other; "
            "give both, or neither to take them from torch.distributed"
        )
    size = whole_number("world_size", world_size, minimum=1, remedy="give the number of ranks that train")
    place = whole_number("rank", rank, minimum=0, remedy=f"give a rank from 0 to {size - 1}")
    if place >= size:
        raise ValueError(
            f"rank={place} lies outside world_size={size}: it must be from 0 to {size - 1}; "
            "check that both come from the same process group"
        )
    return place, size


def _ranks_of_this_process() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    # The only place of this package that reads the environment: under a launcher that has started several processes,
    # a missing process group would silently give every one of them the rows of rank 0.
    announced = os.environ.get("WORLD_SIZE", "1")
    if announced.strip() not in {"", "1"}:
        raise ValueError(
            f"rank and world_size are left out and the environment says WORLD_SIZE={announced}, but no process group "
            "exists: call torch.distributed.init_process_group first, or give rank and world_size"
        )
    return 0, 1
