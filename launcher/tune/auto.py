"""``batch.max_per_device=auto``: found before training, and kept with the run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from launcher.checkpoints.generation import read_facts
from launcher.configure.devices import plan_of
from launcher.configure.schema import AUTO, RunConfig
from launcher.context import RankContext
from launcher.processes.errors import SettingsError
from launcher.processes.group import settled_by_rank_zero
from launcher.training.resume import look
from launcher.tune.find import find_size
from launcher.tune.plan_sizes import with_size
from launcher.tune.tell import tell

log = logging.getLogger(__name__)


def settled(run: RunConfig, context: RankContext, ranks: int) -> RunConfig:
    """The settings with a number for ``batch.max_per_device=auto``: that of the run so far, or a new one.

    A run that is continued keeps its number: with another one, BatchNorm would see other micro-batches. The number
    depends on a device and not on how many there are; it is found anew only where the shares of as many devices as
    there are now cannot be cut by it.

    Args:
        run: the settings.
        context: of this rank.
        ranks: that work.
    """
    if run.batch.max_per_device != AUTO or run.batch.exact:
        return run
    key = f"tune/{context.rank.attempt}/kept"
    kept = settled_by_rank_zero(context.store, context.rank, key, lambda: _kept(run, context.run_dir))
    told = context.rank.rank == 0
    if kept and _is_possible(run, ranks, kept):
        if told:
            log.info("batch.max_per_device=auto: %d, as the run was trained with before", kept)
        return with_size(run, kept)
    if kept and told:
        log.info("batch.max_per_device=auto: %d, as before, cannot cut the shares of %d ranks", kept, ranks)
    tuning = find_size(run, context, ranks)
    if told:
        tell(tuning, run, context.run_dir, context.device, ranks)
    return with_size(run, tuning.recommended)


def _kept(run: RunConfig, run_dir: Path) -> Any:
    """The number that the checkpoint that the run continues from was trained with; None: there is none."""
    found = look(run.checkpoint.resume, run_dir)
    if found is None:
        return None
    kept = read_facts(found["place"], Path(found["folder"])).settings["batch"].get("max_per_device")
    return kept if type(kept) is int else None


def _is_possible(run: RunConfig, ranks: int, rows: int) -> bool:
    try:
        plan_of(with_size(run, rows), ranks)
    except SettingsError:
        return False
    return True
