"""The store that the ranks meet at, the process group, and the ranks that stay outside it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.processes.failures import AnotherFailedError, failure_key
from launcher.processes.network import address_towards, interface_of, is_loopback
from launcher.processes.signals import Signals
from launcher.processes.store import HERE, new_store

NAMESPACE = "evenshard"
MEETING_TIMEOUT = timedelta(seconds=600)
SEE_OFF = timedelta(seconds=10)
LOOK_S = 0.5
INTERFACE = "GLOO_SOCKET_IFNAME"


def meet(rank: Rank) -> dist.Store:
    """The store that all ranks of the run share; it outlives an elastic restart where an agent keeps it.

    Raises:
        DistError: where the ranks do not meet.
        OSError: where somebody else has the port.
    """
    if rank.world_size == 1 and rank.started_by == "python":
        return dist.HashStore()
    if rank.has_agent:
        store, _, _ = next(dist.rendezvous("env://", timeout=MEETING_TIMEOUT))
    elif rank.rank == 0 and rank.one_node and rank.host == HERE:
        store = new_store(port=rank.port, ranks=rank.world_size, timeout=MEETING_TIMEOUT)
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


def settled_by_rank_zero(store: dist.Store, rank: Rank, key: str, settle: Callable[[], Any]) -> Any:
    """What rank 0 settled under ``key``, fit for JSON, for every rank that asks.

    Raises:
        SettingsError: on every rank, where it was raised on rank 0.
        AnotherFailedError: where rank 0 failed otherwise.
    """

    def outcome() -> str:
        try:
            return json.dumps({"value": settle()})
        except SettingsError as error:
            return json.dumps({"error": str(error)})
        except BaseException:
            store.set(key, json.dumps({}))  # the others wait for an answer
            raise

    found = json.loads(from_rank_zero(store, rank, key, outcome))
    if "error" in found:
        raise SettingsError(found["error"])
    if not found:
        raise AnotherFailedError("rank 0 failed")
    return found["value"]


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
    with joined(store, rank, world_size, backend, device, timeout_s):
        yield


@contextmanager
def joined(
    store: dist.Store, rank: Rank, world_size: int, backend: str, device: torch.device, timeout_s: float
) -> Iterator[None]:
    """Join the ranks 0 .. world_size - 1 into a process group for the length of the block, also a single one."""
    ours = dist.PrefixStore(f"group/{rank.attempt}", store)
    if rank.one_node:
        stay_on_this_node()
    else:
        _reach_the_other_nodes(ours, rank, world_size)
    dist.init_process_group(
        backend,
        store=ours,
        rank=rank.rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def stay_on_this_node() -> None:
    """Let gloo talk over the loopback interface: a host name need not resolve, and no port is open to others."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address.startswith("127.") for a in addresses):
            os.environ.setdefault(INTERFACE, name)


def _reach_the_other_nodes(store: dist.Store, rank: Rank, world_size: int) -> None:
    """Let gloo talk over the interface that leads to the other nodes, rather than the one that the host is named for.

    It is the one from which this rank reaches the store; where the store is on this node and goes by a name that
    stands for this node only here, the one from which it reaches a rank elsewhere.
    """
    address = address_towards(rank.host, rank.port)
    store.set(f"address/{rank.rank}", address)
    if is_loopback(address):
        others = (store.get(f"address/{other}").decode() for other in range(world_size))
        elsewhere = next((other for other in others if not is_loopback(other)), address)
        address = address_towards(elsewhere, rank.port)
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault(INTERFACE, name)


def wait_for_the_end(store: dist.Store, rank: Rank, signals: Signals) -> str:
    """Wait, as long as it takes, until the run has ended; tell the ranks that work of signals meanwhile.

    Returns:
        The state in which it ended.

    Raises:
        AnotherFailedError: where a rank failed.
    """
    told = False
    while not store.check([f"done/{rank.attempt}"]):
        if store.check([failure_key(rank.attempt)]):
            raise AnotherFailedError("another rank failed")
        if signals.wish and not told:
            store.set(wish_key(rank.attempt), json.dumps(asdict(signals.wish)))
            told = True
        time.sleep(LOOK_S)
    return store.get(f"done/{rank.attempt}").decode()


def wish_key(attempt: int) -> str:
    """Where idle ranks leave a wish for those that work."""
    return f"wish/{attempt}"


def tell_the_end(store: dist.Store, rank: Rank, state: str) -> None:
    """On rank 0: let the ranks go that wait for the end, which came in this state."""
    store.set(f"done/{rank.attempt}", state)


def leave(store: dist.Store, rank: Rank) -> None:
    """Leave the store; rank 0 does so last where it is the one that keeps it."""
    if rank.store_outlives_ranks or rank.world_size == 1:
        return
    with suppress(dist.DistError, RuntimeError):  # the others are gone already
        if rank.rank:
            store.set(f"left/{rank.attempt}/{rank.rank}", "")
        else:
            store.wait([f"left/{rank.attempt}/{other}" for other in range(1, rank.world_size)], SEE_OFF)


def cuda_devices(wanted: str) -> int:
    """The CUDA devices that this node shows; 0 where ``launch.device`` is ``cpu``."""
    return torch.cuda.device_count() if wanted != "cpu" else 0


def device_of(rank: Rank, wanted: str) -> torch.device:
    """The device of this rank, which becomes the current one; errors are those of ``find_device``."""
    device = find_device(rank, wanted, cuda_devices(wanted))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def find_device(rank: Rank, wanted: str, count: int) -> torch.device:
    """The device of a rank on a node with ``count`` CUDA devices: ``auto`` is CUDA where there is any, else the CPU.

    Raises:
        SettingsError: where the node has fewer CUDA devices than ranks.
    """
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return torch.device("cpu")
    only_one_is_shown = count == 1 and rank.started_by == "slurm"
    index = 0 if only_one_is_shown else rank.local_rank
    if index >= count:
        raise SettingsError(
            f"launch.device={wanted}: local rank {rank.local_rank} needs a CUDA device of its own, this node shows "
            f"{count}; start fewer processes per node or set launch.device=cpu"
        )
    return torch.device("cuda", index)


def backend_of(wanted: str, device: torch.device) -> str:
    """The backend of the process group: ``auto`` is nccl on CUDA, else gloo.

    Raises:
        SettingsError: for nccl without CUDA.
    """
    if wanted == "nccl" and device.type != "cuda":
        raise SettingsError("launch.backend=nccl needs CUDA devices, and this run has none; set launch.backend=gloo")
    return {"cuda": "nccl", "cpu": "gloo"}[device.type] if wanted == "auto" else wanted
