"""What sets the jobs of a sweep apart: their overrides, read for the eyes and for arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from launcher.sweep.jobs import Record

REMOVED = "~"
"""The text of a parameter that a job takes away, with ``~key``."""


def parameters(record: Record) -> dict[str, str]:
    """Key and value of each override, as they were given; of two for one key the last counts.

    >>> from launcher.sweep.jobs import Record
    >>> parameters(Record(0, ("+vars.rule=a=b", "optimizer.lr=0.10", "~scheduler"), "0"))
    {'vars.rule': 'a=b', 'optimizer.lr': '0.10', 'scheduler': '~'}
    """
    found = {}
    for override in record.overrides:
        key, _, text = override.lstrip("+~").partition("=")  # no key has an = of its own
        found[key] = REMOVED if override.startswith("~") else text
    return found


def varying(records: Sequence[Record]) -> list[str]:
    """Keys that have not the same value in all jobs, in the order of the overrides; of one job all that it has."""
    jobs = [parameters(record) for record in records]
    keys = dict.fromkeys(key for job in jobs for key in job)
    return [key for key in keys if len(jobs) == 1 or len({job.get(key) for job in jobs}) > 1]


def apart(record: Record, keys: Iterable[str]) -> str:
    """What sets a job apart, in words: ``optimizer.lr=0.1 seed=1``."""
    own = parameters(record)
    return " ".join(f"{key}={own[key]}" if own[key] != REMOVED else f"~{key}" for key in keys if key in own)


@lru_cache(maxsize=10_000)
def value_of(text: str) -> Any:
    """The value that Hydra reads in ``text``: a number, bool, None, list, dict or str; else the text itself.

    >>> [value_of(text) for text in ("1e-3", "true", "'a,b'", "null", "[1,2]", REMOVED)]
    [0.001, True, 'a,b', None, [1, 2], '~']
    """
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        return text
    return text if override.is_sweep_override() else override.value()


def is_number(value: Any) -> bool:
    """Whether a value lies on a scale; true, false and inf do not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
