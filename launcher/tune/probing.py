"""Trying one micro-batch size on all ranks: a process of its own on each, and one exchange of what came of it."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from launcher.context import RankContext
from launcher.processes.calls import RankError, answer, collect, packed, started
from launcher.processes.errors import FINISHED, PlainError, SettingsError
from launcher.processes.failures import AnotherFailedError, Failure, failure_key
from launcher.processes.forked import CONTEXT, NOT_STARTED, prepare_to_fork, print_to, tell
from launcher.processes.pulse import ended
from launcher.processes.serve import end_with_the_caller
from launcher.processes.signals import held_back
from launcher.tune.measure import Measured, Order, measure
from launcher.tune.memory import died_of_memory, take_what_is_used
from launcher.tune.result import Probe
from samplers.words import counted

PRELOADED = ("launcher.tune.measure", "torch._dynamo")
Found = TypeVar("Found")
LOOK_S = 0.05
SLOWER_S = 60.0
"""Seconds that another rank may begin later, or be slower to start a process."""


@dataclass(frozen=True)
class Outcome:
    """What came of a size on one rank, fit for JSON.

    Attributes:
        measured: what was measured, with its fields by name; None: nothing could be.
        failed: why trying on is of no use; None: it is.
        names_size: whether what is told of that needs no more words about the size.
        load: processes that ran or waited to run, for each core.
    """

    measured: dict[str, Any] | None
    failed: str | None
    names_size: bool
    load: float


def prepare() -> None:
    """Have a process load, meanwhile, what probes are forked from."""
    prepare_to_fork(PRELOADED)


def attempt(order: Order, context: RankContext, timeout_s: float, *, smaller_ran: bool) -> Measured:
    """Try a size on this rank, in a process of its own that is gone afterwards.

    Args:
        order: what is tried.
        context: of this rank.
        timeout_s: seconds that it may take.
        smaller_ran: whether a smaller size ran.

    Raises:
        BaseException: what the process raised, but for lack of memory.
        SettingsError: where it takes too long.
        PlainError: where it died, and not for lack of memory.
    """
    rows, name = counted(order.rows, "row"), f"rank {context.rank.rank}"
    children: list[Child] = []
    try:
        return apart(measure, order, context, timeout_s, children)
    except TimeoutError as error:
        if error.__cause__ is not None:  # it was raised in the process
            raise
        less = f", or set tune.max_rows below {order.rows}" if smaller_ran else ""
        raise SettingsError(
            f"trying a micro-batch of {rows} on {name} took longer than tune.timeout_s={timeout_s:g}; raise it{less}"
        ) from error
    except RankError as error:
        status, answered = children[0].exitcode, error.__cause__ is not None
        if not answered and died_of_memory(status, smaller_ran=smaller_ran):
            return Measured.none(f"its process {ended(status)}", order.available_bytes)
        raise PlainError(f"trying a micro-batch of {rows} failed, and not for lack of memory: {error}") from error


def apart(
    work: Callable[[Order], Found], order: Order, context: RankContext, timeout_s: float, children: list[Child]
) -> Found:
    """What ``work`` gives for an order, in a process of its own that is gone afterwards.

    Args:
        work: a function of a module.
        order: for it.
        context: of this rank, whose log gets what the process prints.
        timeout_s: seconds that it may take.
        children: gets the process.

    Raises:
        TimeoutError: where it takes longer.
        RankError: where the process died.
        BaseException: what ``work`` raised.
    """

    def start(_: int, connection: Connection) -> Child:
        name, file = f"rank {context.rank.rank}", context.run_dir / f"rank_{context.rank.rank}.log"
        children.append(_start(name, connection, packed(work, (order,)), order.rows, file))
        return children[-1]

    with started(1, start) as ranks:
        found: Found = collect(ranks, time.monotonic() + timeout_s)[0]
        return found


@dataclass
class Child:
    """The process of a probe, which leads a group of those that it starts.

    Attributes:
        name: of the rank.
        process: itself.
    """

    name: str
    process: BaseProcess

    @property
    def exitcode(self) -> int | None:
        """As ``multiprocessing`` has it."""
        return self.process.exitcode

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self.process.join(timeout)

    def kill(self) -> None:
        """End it at once, with those that it started."""
        tell(self.process, signal.SIGKILL)


def _start(name: str, connection: Connection, call: bytes, rows: int, file: Path) -> Child:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    arguments = (connection, call, dict(os.environ), cores, str(file))
    process = CONTEXT.Process(target=_live, args=arguments)
    try:
        with held_back():  # it may be that the process that probes are forked from starts only now
            process.start()
    except NOT_STARTED as error:
        raise PlainError(
            f"{name} cannot start a process to try a micro-batch of {counted(rows, 'row')} in: {error}"
        ) from error
    return Child(name, process)


def _live(
    connection: Connection, call: bytes, environment: dict[str, str], cores: tuple[int, ...], file: str
) -> NoReturn:
    """The life of a probe's process."""
    gc.freeze()  # what was there before the fork is shared, as long as nobody goes through it for garbage
    os.setsid()  # signals of a terminal are for the rank, which ends this process
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    print_to(Path(file))
    take_what_is_used()
    multiprocessing.set_start_method(None, force=True)  # its own children start as those of any process
    threading.Thread(target=end_with_the_caller, args=(connection,), daemon=True).start()
    found = answer(call, nullcontext())
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_bytes(found)  # it is the last word: nothing of this process is waited for
    os._exit(FINISHED)


def exchange(context: RankContext, ranks: int, number: int, mine: Outcome, patience_s: float) -> list[Outcome]:
    """What came of the size with this ``number`` on each rank; it waits for all of them.

    Raises:
        PlainError: naming a rank that gives no answer.
        AnotherFailedError: where a rank failed otherwise.
    """
    store, rank = context.store, context.rank
    store.set(_key(context, number, rank.rank), json.dumps(asdict(mine)))
    until = time.monotonic() + patience_s + SLOWER_S
    for other in range(ranks):
        while not store.check([_key(context, number, other)]):
            _look_after_others(context)
            if time.monotonic() > until:
                raise PlainError(f"rank {other} gave no answer about its memory within {patience_s + SLOWER_S:g} s")
            time.sleep(LOOK_S)
    found = (json.loads(store.get(_key(context, number, other))) for other in range(ranks))
    return [Outcome(**each) for each in found]


def _look_after_others(context: RankContext) -> None:
    gone = AnotherFailedError("another rank failed")
    if context.store.check([failure_key(context.rank.attempt)]):
        raise gone
    if context.watch.blame_dead(Failure.of(gone, context.rank.rank)):
        raise gone


def _key(context: RankContext, number: int, rank: int) -> str:
    return f"tune/{context.rank.attempt}/{number}/{rank}"


def joined(rows: int, measured: Sequence[Mapping[str, Any]]) -> Probe:
    """One probe of what all ranks measured: it fits where it does on all, and the slowest and largest count."""
    bad = [f"rank {rank}: {each['why_not']}" for rank, each in enumerate(measured) if each["why_not"]]
    peak = max((each["peak_bytes"] for each in measured), default=0) or None
    if bad:
        return Probe(rows, fits=False, why_not="; ".join(bad[:1]), peak_bytes=peak)
    slowest = max(measured, key=lambda each: sum(each["step_s"]) / len(each["step_s"]))
    evaluated = [each["evaluate_s"] for each in measured if each["evaluate_s"] is not None]
    return Probe(
        rows,
        fits=True,
        peak_bytes=peak,
        step_s=tuple(slowest["step_s"]),
        evaluate_s=max(evaluated, default=None),
    )
