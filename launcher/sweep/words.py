"""Numbers, names and jobs as a user reads them, on one line and no wider than there is room."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size

from launcher.sweep.jobs import DONE, FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, STOPPED, WAITING, Record

STATES = (FINISHED, STOPPED, PRUNED, FAILED, PREEMPTED, RUNNING, WAITING)
GAP = "..."
DECIMAL = re.compile(r"-?\d*\.\d+(e[+-]?\d+)?")
QUOTED = re.compile(r"^(['\"])(.*)\1$", re.DOTALL)


def number(value: float | None) -> str:
    """A metric: four decimals, or four digits where these say more; ``-`` for none.

    >>> [number(value) for value in (0.98, 12, 0, 0.00012345, 1234567.0, float("nan"), None)]
    ['0.9800', '12.0000', '0.0000', '1.234e-04', '1.235e+06', 'nan', '-']
    """
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """A length of time.

    >>> [duration(seconds) for seconds in (0, 2.14, 99.94, 125, 3725)]
    ['0.0 s', '2.1 s', '99.9 s', '2:05 min', '1:02:05 h']
    """
    if seconds < 100:  # noqa: PLR2004 - as long as the seconds have room
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def ranges(names: Iterable[str]) -> str:
    """Names in a row; three numbers or more that follow each other as a range.

    >>> ranges(["0", "1", "4", "5", "6", "7", "GPU-8f"])
    '0,1,4-7,GPU-8f'
    """
    words: list[str] = []
    for _, group in groupby(enumerate(names), lambda each: int(each[1]) - each[0] if each[1].isdecimal() else each[1]):
        found = [name for _, name in group]
        words += [f"{found[0]}-{found[-1]}"] if len(found) > 2 else found  # noqa: PLR2004
    return ",".join(words)


def shown(text: str) -> str:
    r"""``text`` on one line: what is no letter, such as a new line or half a character, as its escape.

    >>> shown("a b\n\x1b[1m ü")
    'a b\\n\\x1b[1m ü'
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def unquoted(text: str) -> str:
    r"""``text`` without quotes around it, as Hydra reads it.

    >>> [unquoted(text) for text in ("'a b'", '"a"', "a'", "'", r"'it\'s'")]
    ['a b', 'a', "a'", "'", "it's"]
    """
    found = QUOTED.match(text)
    if not found:
        return text
    quote, inside = found.groups()  # of backslashes, only those before a quote are doubled
    return re.sub(rf"(\\*)\1(\\?)({quote}|$)", r"\1\3", inside)


def cut(text: str, width: int) -> str:
    """``text`` in ``width`` columns of a terminal at most, cut in the middle; a decimal number is rounded.

    >>> [cut("data/first/images", width) for width in (17, 12, 7, 2)]
    ['data/first/images', 'data/...ages', 'da...es', 'da']
    >>> cut("0.0017834075", 9), cut("20261201123456", 9)
    ('0.001783', '202...456')
    """
    if cell_len(text) > width and DECIMAL.fullmatch(text):
        text = f"{float(text):.4g}"
    if cell_len(text) <= width:
        return text
    room = width - len(GAP)
    if room < 2:  # noqa: PLR2004 - a letter on both sides
        return set_cell_size(text, width)
    return set_cell_size(text, (room + 1) // 2) + GAP + set_cell_size(text[::-1], room // 2)[::-1]


def short(keys: Sequence[str]) -> dict[str, str]:
    """The last name of each dotted key, where no other key has it too.

    >>> short(["optimizer.lr", "model.width", "data.width"])
    {'optimizer.lr': 'lr', 'model.width': 'model.width', 'data.width': 'data.width'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    many = Counter(last.values())
    return {key: name if many[name] == 1 else key for key, name in last.items()}


def by_state(records: Iterable[Record]) -> str:
    """How many jobs are in each state: ``12 finished, 1 failed``."""
    many = Counter(record.state for record in records)
    return ", ".join(f"{many[state]} {state}" for state in STATES if many[state])


def progress(records: Sequence[Record], total: int | None) -> str:
    """How far a sweep is: ``12 of 40 done, 1 failed, 2 running``.

    Args:
        records: of the jobs that are known.
        total: how many there will be; None: nobody knows.
    """
    many = Counter(record.state for record in records)
    done = sum(many[state] for state in DONE)
    others = [f"{many[state]} {state}" for state in (FAILED, PREEMPTED, RUNNING) if many[state]]
    return ", ".join([f"{done} done" if total is None else f"{done} of {max(total, len(records))} done", *others])
