"""Real gloo processes from an ordinary test.

Example::

    def gather(word):
        values = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, f"{word} {torch.distributed.get_rank()}")
        return values

    def test_gather():
        assert simulate(2, gather, "rank") == [["rank 0", "rank 1"]] * 2

The processes are forked from a server that has torch loaded, which takes a fraction of a second.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from launcher.processes.calls import RankError, answer, collect, packed, started
from launcher.processes.environment import Rank
from launcher.processes.group import joined, meet

__all__ = ["RankError", "simulate"]

GROUP_TIMEOUT_S = 60.0
PRELOADED = ("launcher.testing", "launcher.cli")
# Slow to import; the ranks need not do it again where the test has done it.
WHERE_LOADED = (
    "numpy",
    "pytest",
    "launcher.configure.help",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.utils.tensorboard",
)


def simulate(
    world_size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
    process_group: bool = True,
) -> list[Any]:
    """Call ``function(*arguments)`` on ``world_size`` processes that form a gloo group.

    Args:
        world_size: number of processes, on this machine.
        function: any function, also one that was defined inside a test.
        arguments: given to every rank; its number is ``torch.distributed.get_rank()``, or ``RANK`` in the environment.
        timeout_s: seconds after which ranks that are not done count as hanging, and are killed.
        environment: variables added to those of torchrun, which every rank finds set.
        process_group: whether to form a group; without one, ``function`` meets the others by itself.

    Returns:
        The value of every rank, by rank.

    Raises:
        BaseException: what the first rank that failed raised, caused by a RankError with that rank's traceback. The
            other ranks are killed.
        RankError: where a rank died, its error cannot be pickled, or it is one that would end this process.
        TimeoutError: where ranks hang; it names them.
        ValueError: for a world without ranks.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} is too small: a world has at least one rank")
    call = packed(function, arguments)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {**_variables(world_size, store.port), **(environment or {})}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *(name for name in WHERE_LOADED if name in sys.modules)])

    def start(rank: int, connection: Connection) -> BaseProcess:
        own = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(target=_serve, args=(connection, call, own, process_group), name=f"rank {rank}")
        process.start()
        return process

    try:
        with started(world_size, start) as ranks:
            return collect(ranks, time.monotonic() + timeout_s)
    finally:
        del store  # a traceback would keep it alive, with threads that a fork does not survive


def _variables(world_size: int, port: int) -> dict[str, str]:
    """Give torchrun's variables, but for those that differ from rank to rank."""
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _serve(connection: Connection, call: bytes, environment: dict[str, str], process_group: bool) -> None:
    """The life of a rank."""
    gc.freeze()  # what was there before the fork is shared, as long as nobody goes through it for garbage
    # It passes on how it was itself started, which would have its loaders' workers import everything anew.
    multiprocessing.set_start_method(None, force=True)
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    connection.send_bytes(answer(call, _gloo() if process_group else nullcontext()))
    connection.close()


@contextmanager
def _gloo() -> Iterator[None]:
    rank = Rank.from_environment(os.environ)
    with joined(meet(rank), rank, rank.world_size, "gloo", torch.device("cpu"), GROUP_TIMEOUT_S):
        yield
