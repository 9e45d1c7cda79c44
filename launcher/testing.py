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
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

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


@dataclass(frozen=True)
class Ended:
    """How a process ended: with a value, or with an error at a certain time."""

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    at: float = 0.0


class RankError(RuntimeError):
    """A rank ended without a word, or with an error that cannot travel between processes."""


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
        BaseException: what the first rank that failed raised, with that rank's traceback as a note or cause. The other
            ranks are killed.
        RankError: where a rank died without a word or its error cannot be pickled.
        TimeoutError: where ranks hang; it names them.
        ValueError: for a world without ranks.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} is too small: a world has at least one rank")
    call = cloudpickle.dumps((function, arguments))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {**_variables(world_size, store.port), **(environment or {})}
    try:
        with _processes(world_size, call, variables, process_group) as ranks:
            return _collect(ranks, time.monotonic() + timeout_s)
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


@contextmanager
def _processes(
    world_size: int, call: bytes, variables: dict[str, str], process_group: bool
) -> Iterator[dict[Connection, BaseProcess]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *(name for name in WHERE_LOADED if name in sys.modules)])
    ranks: dict[Connection, BaseProcess] = {}
    process: BaseProcess
    try:
        for rank in range(world_size):
            mine, theirs = context.Pipe(duplex=False)
            environment = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = context.Process(
                target=_serve, args=(theirs, call, environment, process_group), name=f"rank {rank}"
            )
            process.start()
            theirs.close()
            ranks[mine] = process
        yield ranks
    finally:
        for connection, process in ranks.items():
            process.kill()
            process.join()
            connection.close()


def _collect(ranks: dict[Connection, BaseProcess], deadline: float) -> list[Any]:
    values: dict[Connection, Any] = {}
    while len(values) < len(ranks):
        pending = [connection for connection in ranks if connection not in values]
        ready = wait(pending, max(0.0, deadline - time.monotonic()))
        if not ready:
            names = ", ".join(ranks[connection].name for connection in pending)
            raise TimeoutError(f"{names} of {len(ranks)} ranks did not end in time")
        ended = {c: _receive(c, ranks[c]) for c in pending if c in ready}
        failed = [(end.at, c) for c, end in ended.items() if end.error is not None]
        if failed:
            first = min(failed, key=lambda item: item[0])[1]
            _raise(ended[first], ranks[first].name)
        values.update({connection: end.value for connection, end in ended.items()})
    for process in ranks.values():
        process.join()
    return [values[connection] for connection in ranks]


def _receive(connection: Connection, process: BaseProcess) -> Ended:
    try:
        return pickle.loads(connection.recv_bytes())  # type: ignore[no-any-return]  # noqa: S301 - from our own child
    except EOFError:
        process.join()
        death = RankError(f"{process.name} ended without a word, exit code {process.exitcode}")
        return Ended(error=death, at=time.time())


def _raise(end: Ended, name: str) -> None:
    if end.error is None:
        return
    raise end.error from RankError(f"{name}:\n{end.text}")


def _serve(connection: Connection, call: bytes, environment: dict[str, str], process_group: bool) -> None:
    """The life of a rank."""
    gc.freeze()  # what was there before the fork is shared, as long as nobody goes through it for garbage
    # It passes on how it was itself started, which would have its loaders' workers import everything anew.
    multiprocessing.set_start_method(None, force=True)
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    connection.send_bytes(_outcome(call, process_group))
    connection.close()


def _outcome(call: bytes, process_group: bool) -> bytes:
    try:
        function, arguments = cloudpickle.loads(call)
        if process_group:
            _join()
        value = function(*arguments)
        if process_group:
            dist.destroy_process_group()
        return cloudpickle.dumps(Ended(value))  # type: ignore[no-any-return]
    except BaseException as error:  # noqa: BLE001 - it is raised in the test
        return _pickled(error)


def _join() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


def _pickled(error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        content: bytes = cloudpickle.dumps(Ended(error=error, text=text, at=time.time()))
        pickle.loads(content)  # noqa: S301 - made on the line above
    except Exception:  # noqa: BLE001 - some exceptions cannot be pickled, or not read again
        return cloudpickle.dumps(Ended(error=RankError(text), text=text, at=time.time()))  # type: ignore[no-any-return]
    return content
