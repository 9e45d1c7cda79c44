"""A user's mistake, and the first cause of a failure among many ranks."""

from __future__ import annotations

import json
import os
import sysconfig
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

FINISHED = 0
FAILED = 1
WRONG_SETTINGS = 2

OWN_CODE = Path(__file__).resolve().parent.parent
LIBRARIES = tuple(
    Path(path).resolve() for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")
)


class SettingsError(Exception):
    """The user's settings are wrong: the message is for the user, ends with exit status 2 and shows no traceback."""


@dataclass(frozen=True)
class Failure:
    """What ended a run: the rank that failed first, with its own words."""

    rank: int
    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Failure:
        """Describe ``error`` as it was raised on ``rank``."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(rank, type(error).__name__, str(error), text)

    @property
    def headline(self) -> str:
        """One line: rank, type and message."""
        return f"rank {self.rank}: {self.type}: {self.message}"


def closest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word that looks most like ``word``, or an empty string.

    >>> closest("modle", ["mode", "model"])
    "; did you mean 'model'?"
    """
    found = get_close_matches(word, list(known), n=5, cutoff=0.6)
    swapped = [name for name in found if sorted(name) == sorted(word)]
    return f"; did you mean {(swapped or found)[0]!r}?" if found else ""


def one_of(option: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a ``value`` of ``option`` that is not among the ``allowed`` words.

    Raises:
        SettingsError: with the value found, the words that are allowed and the closest of them.
    """
    words = list(allowed)
    if value not in words:
        raise SettingsError(f"{option}={value} is not one of {', '.join(words)}{closest(str(value), words)}")


def is_users_own(error: BaseException) -> bool:
    """Whether ``error`` was raised by code that is neither ours nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    where = Path(frames[-1].filename)
    if not where.exists():
        return False
    path = where.resolve()
    return not any(path.is_relative_to(home) for home in (OWN_CODE, *LIBRARIES))


def first_failure(store: Store, failure: Failure, attempt: int) -> Failure:
    """Put ``failure`` forward as the cause of this attempt's end; return the one that came first, on every rank.

    A rank that fails because its neighbour failed gets the neighbour's failure back, so that one rank alone tells
    the user and everybody agrees on the cause.
    """
    mine = store.add(f"failures/{attempt}", 1) == 1
    if mine:
        store.set(f"failure/{attempt}", json.dumps(asdict(failure)))
        return failure
    return Failure(**json.loads(store.get(f"failure/{attempt}")))


def told_before(store: Store, message: str) -> bool:
    """Whether ``message`` was claimed earlier by any rank of any attempt; claims it otherwise."""
    return int(store.add(f"told/{message}", 1)) > 1


def tell_torchrun(failure: Failure) -> None:
    """Leave the headline where torchrun's table of failures looks for it; nothing happens without torchrun."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if target:
        detail = {"py_callstack": failure.headline, "timestamp": str(int(time.time()))}
        Path(target).write_text(
            json.dumps({"message": {"message": failure.headline, "extraInfo": detail}}), encoding="utf-8"
        )
