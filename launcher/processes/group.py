"""The store that the ranks meet at, the process group, and the ranks that stay outside it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError

NAMESPACE = "evenshard"
MEETING_TIMEOUT = timedelta(seconds=600)
IDLE_LOOK = timedelta(hours=24 * 365)


def meet(rank: Rank) -> dist.Store:
    """The store that all ranks of the run share; it outlives an elastic restart where an agent keeps it."""
    if rank.world_size == 1 and rank.started_by == "python":
        return dist.HashStore()
    if rank.started_by == "torchrun":
        store, _, _ = next(dist.rendezvous("env://", timeout=MEETING_TIMEOUT))
    else:
        store = dist.TCPStore(rank.host, rank.port, rank.world_size, is_master=rank.rank == 0, timeout=MEETING_TIMEOUT)
    return dist.PrefixStore(NAMESPACE, store)


def from_rank_zero(store: dist.Store, rank: Rank, key: str, produce: Callable[[], str]) -> str:
    """The text that rank 0 produced under ``key``; the other ranks wait for it.

    A text that is there already, from before an elastic restart, is taken as it is.
    """
    if rank.rank == 0 and not store.check([key]):
        store.set(key, produce())
    return store.get(key).decode()


@contextmanager
def process_group(
    store: dist.Store, rank: Rank, world_size: int, backend: str, device: torch.device, timeout_s: float
) -> Iterator[None]:
    """Join the ranks 0 .. world_size - 1 into a process group for the length of the block.

    A single process needs none.
    """
    if rank.world_size == 1:
        yield
        return
    if rank.one_node:
        _stay_on_this_node()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"group/{rank.attempt}", store),
        rank=rank.rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    yield
    dist.destroy_process_group()


def _stay_on_this_node() -> None:
    """Let gloo talk over the loopback interface: a host name need not resolve, and no port is open to others."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address.startswith("127.") for a in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def idle(store: dist.Store, rank: Rank) -> None:
    """Wait outside the process group until the ranks that work are done."""
    store.wait([f"done/{rank.attempt}"], IDLE_LOOK)
    store.set(f"left/{rank.attempt}/{rank.rank}", "")


def release_idle(store: dist.Store, rank: Rank, first_idle: int) -> None:
    """Let the idle ranks go, and see them off before the store may vanish."""
    if rank.rank == 0 and first_idle < rank.world_size:
        store.set(f"done/{rank.attempt}", "")
        store.wait([f"left/{rank.attempt}/{other}" for other in range(first_idle, rank.world_size)])


def device_of(rank: Rank, wanted: str) -> torch.device:
    """The device of this rank: ``auto`` is CUDA where there is any, else the CPU.

    Raises:
        SettingsError: where this node has fewer CUDA devices than ranks.
    """
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return torch.device("cpu")
    if rank.local_rank >= count:
        raise SettingsError(
            f"launch.device={wanted}: local rank {rank.local_rank} needs a CUDA device of its own, this node shows "
            f"{count}; start fewer processes per node or set launch.device=cpu"
        )
    torch.cuda.set_device(rank.local_rank)
    return torch.device("cuda", rank.local_rank)
