"""A user's mistake: one message in the words of the settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

FINISHED = 0
FAILED = 1
WRONG_SETTINGS = 2
PREEMPTED = 75
NEVER_RETRIED = (WRONG_SETTINGS, PREEMPTED)


class SettingsError(Exception):
    """The user's settings are wrong: the message is for the user, ends with exit status 2 and shows no traceback."""


class PlainError(Exception):
    """What went wrong is no mistake in the code: the message says it all, and no traceback is shown."""


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``"; did you mean 'x'?"`` for the known word that looks most like ``word``, or an empty string.

    >>> closest("modle", ["mode", "model"])
    "; did you mean 'model'?"
    """
    found = get_close_matches(word, list(known), n=5, cutoff=cutoff)
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


def at_least(option: str, value: float | None, least: float) -> None:
    """Refuse a ``value`` of ``option`` that is below ``least`` or no finite number; None passes.

    Raises:
        SettingsError: with the value found and the least.
    """
    if value is not None and (value < least or not math.isfinite(value)):
        size = "too small" if math.isfinite(value) else "no finite number"
        raise SettingsError(f"{option}={value} is {size}: the least is {least:g}")


def first_line(error: BaseException) -> str:
    """The first line of a message, without the details that libraries add."""
    return str(error).strip().splitlines()[0]


def few(names: list[str], limit: int = 3) -> str:
    """The first names, and how many more there are.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
