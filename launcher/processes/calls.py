"""Calling a function on ranks and collecting what becomes of it, however their processes are started."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Protocol, TypeVar

import cloudpickle

from launcher.processes.failures import LAST_WORDS_S, is_consequence
from launcher.processes.pulse import ended

LONGEST_WAIT_S = 86_400.0
DYING_S = 5.0
"""Seconds between the end of a process' connections and its own."""


class RankError(RuntimeError):
    """A rank died, or ended with an error that cannot travel between processes or would end another one."""


class Process(Protocol):
    """A process in which a rank lives.

    Attributes:
        name: such as ``rank 1``.
    """

    name: str

    @property
    def exitcode(self) -> int | None:
        """Its exit status; of a signal: its number below zero; None: it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""

    def kill(self) -> None:
        """End it at once."""


P = TypeVar("P", bound=Process)


@dataclass(frozen=True)
class Ended:
    """How a call ended: with a value, or with an error at a certain time.

    Attributes:
        value: that it gave.
        error: that it raised; None: it gave a value.
        text: of the error, as Python prints it.
        at: when it was raised, in seconds since 1970.
    """

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    at: float = 0.0

    @property
    def is_consequence(self) -> bool:
        """Whether it is what a rank sees when another one has gone."""
        return self.error is not None and is_consequence(self.error)


@contextmanager
def started(count: int, start: Callable[[int, Connection], P]) -> Iterator[dict[Connection, P]]:
    """A process for each rank, by the connection to it, for the length of the block, at whose end all are killed.

    Args:
        count: of ranks.
        start: starts the process of a rank, which is at the other end of the connection that it is given.
    """
    ranks: dict[Connection, P] = {}
    try:
        for rank in range(count):
            mine, theirs = Pipe()
            ranks[mine] = start(rank, theirs)
            theirs.close()
        yield ranks
    finally:
        for connection, process in ranks.items():
            process.kill()
            process.join()
            connection.close()


def packed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """A call in the form in which it travels, also of a function that no other process could import."""
    return cloudpickle.dumps((function, arguments))  # type: ignore[no-any-return]


def answer(call: bytes, group: AbstractContextManager[object]) -> bytes:
    """On a rank: make a call inside ``group``, and give what becomes of it in the form in which that travels."""
    try:
        function, arguments = cloudpickle.loads(call)
        with group:
            value = function(*arguments)
        return cloudpickle.dumps(Ended(value))  # type: ignore[no-any-return]
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was asked for
        return _packed_error(error)


def collect(
    ranks: Mapping[Connection, Process],
    deadline: float,
    readers: Mapping[int, Callable[[], bool]] | None = None,
) -> list[Any]:
    """Wait for the answers of all ranks.

    Args:
        ranks: where the answer of each comes from, and its process, by rank.
        deadline: in seconds of ``time.monotonic``.
        readers: what reads from a descriptor whenever there is something, until it says that nothing more comes.

    Returns:
        The value of every rank, by rank.

    Raises:
        BaseException: what the first rank that failed raised, caused by a RankError with its traceback. A rank that
            lost another one is not the first as long as that one may have something to say.
        RankError: where a rank died.
        TimeoutError: where ranks are not done in time.
    """
    answers = Answers(ranks, readers or {})
    while answers.pending:
        if not answers.receive(deadline):
            names = ", ".join(ranks[connection].name for connection in answers.pending)
            raise TimeoutError(f"{names} of {len(ranks)} ranks did not end in time")
        if answers.failed:
            last_words = min(deadline, time.monotonic() + LAST_WORDS_S)
            while answers.pending and answers.first_failed[1].is_consequence and answers.receive(last_words):
                pass
            _raise(*answers.first_failed)
    for process in ranks.values():
        process.join()
    return [answers.ended[connection].value for connection in ranks]


class Answers:
    """What ranks have answered so far.

    Args:
        ranks: as in ``collect``.
        readers: as in ``collect``.

    Attributes:
        ended: the answers.
    """

    def __init__(self, ranks: Mapping[Connection, Process], readers: Mapping[int, Callable[[], bool]]) -> None:
        self.ended: dict[Connection, Ended] = {}
        self._ranks, self._readers = ranks, dict(readers)

    @property
    def pending(self) -> list[Connection]:
        """Where no answer came from yet."""
        return [connection for connection in self._ranks if connection not in self.ended]

    @property
    def failed(self) -> list[tuple[str, Ended]]:
        """The ranks that failed, by name, and how."""
        return [(self._ranks[c].name, end) for c, end in self.ended.items() if end.error is not None]

    @property
    def first_failed(self) -> tuple[str, Ended]:
        """The rank whose failure is the cause of the others', as far as they have answered."""
        return min(self.failed, key=lambda found: (found[1].is_consequence, found[1].at))

    def receive(self, deadline: float) -> bool:
        """Wait until something comes, or a day is over; whether ``deadline`` is not."""
        pending = self.pending
        left = min(max(0.0, deadline - time.monotonic()), LONGEST_WAIT_S)
        ready = wait([*pending, *self._readers], left)
        for descriptor in [found for found in self._readers if found in ready]:
            if not self._readers[descriptor]():
                del self._readers[descriptor]
        for connection in pending:
            if connection in ready:
                self.ended[connection] = _received(connection, self._ranks[connection])
        return bool(ready) or time.monotonic() < deadline


def _received(connection: Connection, process: Process) -> Ended:
    try:
        return pickle.loads(connection.recv_bytes())  # type: ignore[no-any-return]  # noqa: S301 - from our own child
    except (EOFError, OSError):
        process.join(DYING_S)
        return Ended(error=RankError(f"{process.name} {ended(process.exitcode)}"), at=time.time())


def _raise(name: str, end: Ended) -> NoReturn:
    assert end.error is not None  # noqa: S101 - our own mistake
    raise end.error from RankError(f"{name}:\n{end.text}") if end.text else None


def _packed_error(error: BaseException) -> bytes:
    text = traceback.format_exc()
    if isinstance(error, SystemExit | KeyboardInterrupt):
        error = RankError(f"{type(error).__name__}: {error}")
    try:
        content: bytes = cloudpickle.dumps(Ended(error=error, text=text, at=time.time()))
        pickle.loads(content)  # noqa: S301 - made on the line above
    except Exception:  # noqa: BLE001 - some exceptions cannot be pickled, or not read again
        return cloudpickle.dumps(Ended(error=RankError(text), text=text, at=time.time()))  # type: ignore[no-any-return]
    return content
