"""Settings of a run that is continued, compared with those it had: what may change, and what may not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from launcher.configure.schema import RunConfig
from launcher.processes.errors import SettingsError

FIXED = {
    "other rows": ("batch.global_size", "batch.tail", "batch.pad_weight", "data.train", "data.order"),
    "another seed": ("seed",),
    "another model": ("model",),
    "another optimizer": ("optimizer._target_",),
    "another way to compute a step": ("batch.exact", "batch.shard_rows", "batchnorm"),
}
"""What would make it another run, and the settings that do."""
WHERE = ("engine", "slurm", "rdzv_endpoint", "rdzv_id", "node_rank", "local_addr")
"""Settings of launch that say where a run starts, which is often another place than before."""
NOT_COMPARED = ("mode", "checkpoint.resume", "checkpoint.load", "sweep", "tune", *(f"launch.{name}" for name in WHERE))
UNSET = "unset"
MOST_SHOWN = 8

Changes = dict[str, tuple[Any, Any]]


def differences(before: RunConfig, now: RunConfig) -> Changes:
    """The settings that differ, by dotted name: their values before and now.

    Paths below ``data.root`` are the same where what follows it is: a folder of datasets may move.
    """
    old, new = (_settled(run) for run in (before, now))
    names = [name for name in (*new, *(name for name in old if name not in new)) if not _within(name, NOT_COMPARED)]
    sides = {name: (old.get(name, UNSET), new.get(name, UNSET)) for name in names}
    return {name: (there, here) for name, (there, here) in sides.items() if there != here}


def check_same_run(changes: Changes, place: str) -> None:
    """Refuse changes with which the run would not be the same any more: rows, model, or state that fits no longer.

    Args:
        changes: as ``differences`` gives them.
        place: the setting and folder that the message is about.

    Raises:
        SettingsError: with both sides of each.
    """
    broken = {kind: [name for name in changes if _within(name, names)] for kind, names in FIXED.items()}
    kinds = " and ".join(kind for kind, names in broken.items() if names)
    if kinds:
        both = [(name, changes[name]) for names in broken.values() for name in names]
        sides = "; ".join(f"{name} is {_text(there)} there, {_text(here)} here" for name, (there, here) in both)
        raise SettingsError(
            f"{place}: a run with {kinds}: {sides}; give the settings of that run, or give this one another "
            "hydra.run.dir"
        )


def in_words(changes: Changes) -> str:
    """``trainer.epochs 3 -> 5, data.workers 0 -> 2``."""
    shown = [f"{name} {_text(before)} -> {_text(now)}" for name, (before, now) in list(changes.items())[:MOST_SHOWN]]
    more = [f"{len(changes) - MOST_SHOWN} more"] if len(changes) > MOST_SHOWN else []
    return ", ".join([*shown, *more])


def _text(value: Any) -> str:
    """As it would be written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _settled(run: RunConfig) -> dict[str, Any]:
    """Every setting by dotted name; null for the rows of a shard has become their number."""
    return {**dict(_flat(asdict(run), run.data.root)), "batch.shard_rows": run.shard_rows}


def _within(name: str, sections: tuple[str, ...]) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in sections)


def _flat(value: Any, root: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a dataset folder in front of a text is replaced by its name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, root, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, str) and value.startswith(root) and prefix != "data.root":
        yield prefix, "${data.root}" + value[len(root) :]
    else:
        yield prefix, value
