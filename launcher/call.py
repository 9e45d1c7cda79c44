"""``launch``: a function on every rank of a process group, from a script or a notebook.

Each rank is a fresh interpreter, so that neither a ``__main__`` guard nor a file is needed, and nothing of this
process, such as CUDA, is forked.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO, TypeVar

from launcher.processes.calls import RankError, collect, packed, started
from launcher.processes.environment import World, inherited
from launcher.processes.group import cuda_devices
from launcher.processes.serve import Work
from launcher.processes.store import new_store

__all__ = ["RankError", "launch"]

T = TypeVar("T")
SERVE = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from launcher.processes.serve import serve
serve(int(sys.argv.pop()))
"""
CHUNK = 65_536
SPIN = {"GOMP_SPINCOUNT": "1000"}
"""As for the command: OpenMP threads that spin for long starve each other on a busy machine."""
HERE = "127.0.0.1"
DEVICES = ("auto", "cpu", "cuda")


def launch(
    function: Callable[..., T],
    *arguments: Any,
    processes: int | str = "auto",
    device: str = "auto",
    threads_per_rank: int | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[T]:
    """Call ``function(*arguments)`` on ``processes`` ranks of this machine, inside a process group.

    Example::

        import torch
        from launcher import launch

        def mean(values):
            mine = torch.tensor(values[torch.distributed.get_rank()])
            torch.distributed.all_reduce(mine)
            return mine / torch.distributed.get_world_size()

        launch(mean, [1.0, 2.0, 6.0], processes=3)  # [tensor(3.), tensor(3.), tensor(3.)]

    The group is gloo's on the CPU, and NCCL's on CUDA, where each rank has a device of its own, which is the current
    one. Ranks find the variables of torchrun in their environment, the working directory and the import path of this
    process, and print where it prints. ``function`` and what it refers to in a notebook or script travel by value,
    what it imports does not; nothing that it changes comes back but its value.

    Nothing is left running: the ranks and the processes that they started are gone when this returns or raises, also on
    KeyboardInterrupt, and when this process ends in whatever way.

    Args:
        function: any function, also one of a notebook or a script without a ``__main__`` guard.
        arguments: given to every rank; its number is ``torch.distributed.get_rank()``.
        processes: ranks; ``"auto"``: one per CUDA device, one where there is none.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where there is any.
        threads_per_rank: threads that each rank computes with; None: ``OMP_NUM_THREADS``, else the usable cores divided
            by the ranks.
        timeout_s: seconds after which ranks that are not done count as hanging; None: they may take as long as they
            like.
        environment: variables that the ranks find besides those of this process.

    Returns:
        The value of every rank, by rank.

    Raises:
        BaseException: what the first rank that failed raised, caused by a RankError with that rank's traceback.
        RankError: where a rank died, which names it and the signal that killed it; where its error cannot be pickled;
            or where it would end this process, as SystemExit.
        TimeoutError: where ranks hang; it names them.
        ValueError: for a number of ranks or seconds that cannot be, or more ranks than there are CUDA devices.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s!r} is no time to wait: give seconds above 0, or None")
    count = _count(processes, device)
    work = pickle.dumps(Work(packed(function, arguments), device, threads_per_rank))
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    store = new_store()
    variables = {**SPIN, **inherited(os.environ), **(environment or {})}
    environments = [
        {**variables, **World(count, HERE, store.port).variables(rank, rank, count)} for rank in range(count)
    ]
    try:
        with _outputs() as (out, err), started(count, partial(_start, environments, out.target, err.target)) as ranks:
            for connection in ranks:
                with suppress(OSError):  # it has died, which is told below
                    connection.send_bytes(work)
            return collect(ranks, deadline, {**out.readers, **err.readers})
    finally:
        del store  # a traceback would keep it alive


def _count(processes: int | str, device: str) -> int:
    if device not in DEVICES:
        raise ValueError(f"device={device!r} is not one of {', '.join(DEVICES)}")
    found = cuda_devices(device)
    if device == "cuda" and not found:
        raise ValueError("device='cuda': this machine shows no CUDA device; set device='cpu' or leave it out")
    if processes == "auto":
        return max(1, found)
    if type(processes) is not int or processes < 1:
        raise ValueError(f"processes={processes!r} is no number of ranks: give one from 1 on, or 'auto'")
    if processes > found > 0:
        raise ValueError(
            f"processes={processes} needs {processes} CUDA devices, and this machine shows {found}; start fewer, e.g. "
            "processes='auto', or set device='cpu'"
        )
    return processes


@dataclass
class Child:
    """A rank's process, which leads a group of those that it starts.

    Attributes:
        name: of the rank.
        process: itself.
    """

    name: str
    process: subprocess.Popen[bytes]

    @property
    def exitcode(self) -> int | None:
        """As ``multiprocessing`` has it."""
        return self.process.returncode

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; those that it started end with it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
            self._kill_group()

    def kill(self) -> None:
        """End it at once, with those that it started."""
        if self.process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _start(
    environments: Sequence[Mapping[str, str]], out: int | None, err: int | None, rank: int, connection: Connection
) -> Child:
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", SERVE, str(connection.fileno()), path],
        env=dict(environments[rank]),
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,  # signals of a terminal are for the caller, which ends its ranks
    )
    return Child(f"rank {rank}", process)


class Output:
    """Where ranks print: what this process has as well, or where a stream of Python's own leads, as in a notebook.

    Args:
        stream: ``sys.stdout`` or ``sys.stderr``.
        descriptor: of the file that it would be in a script.

    Attributes:
        target: of the ranks, as ``subprocess`` takes it.
        readers: what passes on what comes from there.
    """

    def __init__(self, stream: TextIO, descriptor: int) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.target: int | None = None
        self.readers: dict[int, Callable[[], bool]] = {}
        if not _is(stream, descriptor):
            self._source, self.target = os.pipe()
            self.readers[self._source] = self._pass_on

    def close(self) -> None:
        """Pass on what is still there; there may be writers that stay."""
        if self.target is None:
            return
        os.close(self.target)
        os.set_blocking(self._source, False)
        with suppress(BlockingIOError):
            while self._pass_on():
                pass
        os.close(self._source)

    def _pass_on(self) -> bool:
        content = os.read(self._source, CHUNK)
        self._stream.write(self._decoder.decode(content, final=not content))
        self._stream.flush()
        return bool(content)


def _is(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (AttributeError, OSError, ValueError):  # it is no file
        return False


@contextmanager
def _outputs() -> Iterator[tuple[Output, Output]]:
    """Where ranks print to standard output and to standard error, for the length of the block."""
    with closing(Output(sys.stdout, 1)) as out, closing(Output(sys.stderr, 2)) as err:
        sys.stdout.flush()
        yield out, err
