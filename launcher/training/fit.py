"""Before anything is trained: do the parts of a run fit together, on every rank?"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from launcher.configure.parts import Parts
from launcher.configure.rows import seeded
from launcher.configure.schema import RunConfig
from launcher.training.check import check_same_rows, check_test_rows, check_training_rows, same_everywhere
from launcher.training.compute import Compute
from launcher.training.repeats import check_repeats


def check_parts(run: RunConfig, parts: Parts, compute: Compute) -> None:
    """Before anything is trained: the same rows on every rank, and rows that the model can take; a collective.

    Raises:
        SettingsError: where that is not so.
    """
    same_everywhere({name: len(rows) for name, rows in _datasets(parts).items()})  # type: ignore[arg-type]
    if parts.train is not None:
        check_training_rows(parts.train, parts.model, parts.task, compute)
    if parts.test is not None:
        check_test_rows(parts.test, parts.model, parts.task, parts.metrics, compute)
    for option, rows in _datasets(parts).items() if run.batch.exact else ():
        check_same_rows(option, seeded(run, rows, option), run.seed)
    if parts.train is not None and run.batch.exact:
        check_repeats(parts.train, parts.model, parts.task, compute, run.seed)


def _datasets(parts: Parts) -> dict[str, Dataset[Any]]:
    found = {"data.train": parts.train, "data.test": parts.test}
    return {name: rows for name, rows in found.items() if rows is not None}
