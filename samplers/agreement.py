"""Ranks that disagree are noticed at the start of an epoch, before they wait for each other for ever."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import distributed

from samplers.permutation import words_from
from samplers.settings import switch
from samplers.words import counted

__all__ = ["check_agreement", "compares_ranks", "gathered", "least"]


def compares_ranks(compare_ranks: object, *, left_out: bool, world_size: int) -> bool:
    """Return whether ranks are compared: as told, else wherever they came from torch.distributed.

    Raises:
        ValueError: told to, but the ranks are not those of torch.distributed.
    """
    group = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else None
    if compare_ranks is None:
        return left_out and group is not None and group > 1
    wanted = switch("compare_ranks", compare_ranks)
    if wanted and group != world_size:
        found = "no process group exists" if group is None else f"the process group has {counted(group, 'rank')}"
        raise ValueError(
            f"compare_ranks=True with world_size={world_size}, but {found}: every rank of torch.distributed must have "
            "a sampler to be compared; leave compare_ranks out"
        )
    return wanted and world_size > 1


def check_agreement(facts: dict[str, Any]) -> None:
    """Compare `facts`, fit for JSON, over the ranks of torch.distributed; every rank must call this.

    One reduction of two numbers where all agree.

    Raises:
        ValueError: the ranks differ; what differs is shown for this rank and the first that has something else.
    """
    mine = int(words_from("agreement", json.dumps(facts, sort_keys=True))[0]) >> 1
    smallest, largest = _smallest([mine, -mine])
    if smallest == -largest:
        return
    everyone = gathered(facts)
    other = next(rank for rank, theirs in enumerate(everyone) if theirs != facts)
    sides = "; ".join(
        f"{key}: rank {distributed.get_rank()} has {facts[key]!r}, rank {other} has {everyone[other].get(key)!r}"
        for key in facts
        if facts[key] != everyone[other].get(key)
    )
    raise ValueError(f"the samplers of the ranks differ ({sides}): make them alike, and set the same epoch on all")


def least(value: int) -> int:
    """Return the smallest of the values that the ranks of torch.distributed give; every rank must call this."""
    return _smallest([value])[0]


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks of torch.distributed; every rank must call this."""
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, value)
    return everyone


def _smallest(values: list[int]) -> list[int]:
    device = torch.device("cuda", torch.cuda.current_device()) if distributed.get_backend() == "nccl" else "cpu"
    smallest = torch.tensor(values, dtype=torch.int64, device=device)
    distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
    return [int(value) for value in smallest.tolist()]
