"""Why a run ended, when many ranks fail together: the first cause, told by one."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from torch.distributed import DistError, Store

from launcher.files import replace_file
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, PREEMPTED, WRONG_SETTINGS, PlainError, SettingsError
from launcher.processes.signals import Preempted

IN_WORKER = re.compile(r"Caught \w+ (in .*)\.\nOriginal Traceback \(most recent call last\):\n")
"""How torch begins the text of an exception that a worker of a loader raised; its traceback and its text follow."""
BROKEN = re.compile(r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)
LAST_WORDS_S = 5.0
"""The seconds that a rank has to say why it went, before another does so."""
LONGEST = 60_000
STEPPED = "stepped"


@dataclass(frozen=True)
class Failure:
    """What ended a run: the rank that failed first, with its own words or those of one that it left waiting.

    Attributes:
        rank: that failed.
        type: the class of the exception.
        message: its text.
        traceback: as Python prints it; may be empty.
        exit_status: of the run.
        by: the rank that says so.
    """

    rank: int
    type: str
    message: str
    traceback: str
    exit_status: int
    by: int

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Failure:
        """Describe ``error`` as it was raised on ``rank``."""
        message = printable(own_text(error))
        if isinstance(error, KeyboardInterrupt):
            status = PREEMPTED if isinstance(error, Preempted) else FAILED
            return cls(rank, type(error).__name__, message or "interrupted", "", status, rank)
        shown = not isinstance(error, PlainError)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)) if shown else ""
        status = WRONG_SETTINGS if isinstance(error, SettingsError) else FAILED
        return cls(rank, type(error).__name__, message, printable(text), status, rank)

    @property
    def headline(self) -> str:
        """Rank, type and message; of a message whose lines are in the traceback, the first."""
        first, *more = self.message.splitlines() or [""]
        message = f"{first} [...]" if more and self.traceback else self.message
        return ": ".join(filter(None, (f"rank {self.rank}", self.type, message)))

    @property
    def words(self) -> str:
        """What the user reads: the message alone where the settings are wrong, else the traceback too."""
        if self.exit_status == PREEMPTED:
            return f"preempted by {self.message} on rank {self.rank} before the first step: nothing is lost"
        if self.exit_status == WRONG_SETTINGS or self.by != self.rank:
            return f"error: {self.message}"
        return f"{self.traceback}error: {self.headline}"


def printable(text: str) -> str:
    """``text`` as it can be printed and sent: bounded, and without the half characters that file names may hold."""
    whole = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n[...]\n{text[-LONGEST // 2 :]}"
    return whole.encode("utf-8", "backslashreplace").decode()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - the class is broken too
        return f"(its text cannot be read: {type(second).__name__})"


def own_text(error: BaseException) -> str:
    """The text of an exception; of one from a worker of a loader, whose text holds a traceback, what it said there."""
    text = _text_of(error)
    found = IN_WORKER.match(text)
    if not found:
        return text
    _, _, last = text.rpartition("\n  ")  # lines of a traceback are indented
    said = re.sub(rf"^[\w.]*\b{type(error).__name__}(: |$)", "", last.partition("\n")[2].strip())
    return f"{said} ({found[1]})".strip()


class AnotherFailedError(Exception):
    """A rank that has nothing to do saw that a working one failed."""


def is_consequence(error: BaseException) -> bool:
    """Whether ``error`` is what a rank sees when another one has gone: a connection that broke."""
    return isinstance(error, DistError | AnotherFailedError) or (
        isinstance(error, RuntimeError) and bool(BROKEN.search(str(error)))
    )


def gone_with_the_store(rank: Rank) -> Failure:
    """What ends a rank that has lost the store, which is kept where rank 0 is."""
    place = f"rank 0 is gone, and with it the store at {rank.host}:{rank.port} that the ranks meet at"
    return Failure(0, "RankLost", place, "", FAILED, by=rank.rank)


def failure_key(attempt: int) -> str:
    """Where the ranks of an attempt find its first failure."""
    return f"failure/{attempt}"


def first_failure(store: Store, failure: Failure, attempt: int) -> Failure:
    """Put ``failure`` forward as the cause of this attempt's end; return the one that came first, on every rank.

    A rank that fails because its neighbour failed gets the neighbour's failure back, so that one rank alone tells
    the user and everybody agrees on the cause.
    """
    first = store.compare_set(failure_key(attempt), "", json.dumps(asdict(failure)))
    return Failure(**json.loads(first))


def note_steps(store: Store) -> None:
    """Leave a word for restarts: a step was done."""
    store.set(STEPPED, "")


def did_steps(store: Store) -> bool:
    """Whether this attempt, or one before it, did a step."""
    return bool(store.check([STEPPED]))


def told_before(store: Store, message: str) -> bool:
    """Whether ``message`` was claimed earlier by any rank of any attempt; claims it otherwise."""
    return int(store.add(f"told/{sha256(message.encode()).hexdigest()}", 1)) > 1


def tell_torchrun(failure: Failure) -> None:
    """Leave the headline where torchrun's table of failures looks for it; nothing happens without torchrun."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if target:
        detail = {"py_callstack": failure.headline, "timestamp": str(int(time.time()))}
        told = {"message": {"message": failure.headline, "extraInfo": detail}}
        replace_file(Path(target), json.dumps(told))  # of half a file torchrun dies
