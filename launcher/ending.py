"""How a run that fails ends: told once, by the rank that failed first, and left where it is looked for."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from launcher.console import say
from launcher.instructions import REMEMBERED, Instructions
from launcher.observe.report import write_report
from launcher.observe.status import write_failure, write_preempted
from launcher.observe.story import PLAN
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, NEVER_RETRIED, PREEMPTED
from launcher.processes.failures import (
    Failure,
    did_steps,
    first_failure,
    gone_with_the_store,
    is_consequence,
    note_steps,
    tell_torchrun,
    told_before,
)
from launcher.processes.origin import users_place
from launcher.processes.signals import Preempted
from launcher.processes.watch import Watch

log = logging.getLogger(__name__)

SECOND_S = 1.0


def report(error: BaseException, run_dir: Path, rank: Rank, store: dist.Store, watch: Watch) -> int:
    """Tell the user what ended the run, if this rank was the first to fail; returns the exit status."""
    mine = Failure.of(error, rank.rank)
    log.error("%s", mine.traceback, extra={"file_only": True})
    try:
        if is_consequence(error) and rank.world_size > 1:
            mine = watch.blame(mine)
        elif isinstance(error, Preempted):  # as launchers do for a rank that died
            mine = watch.blame_dead(mine) or mine
        first = first_failure(store, mine, rank.attempt)
        watch.kill(first)
        if first.by == rank.rank and _is_hopeless(error, first, store, watch):
            store.set(REMEMBERED, Instructions(exit_status=first.exit_status).to_json())
    except dist.DistError:
        first = gone_with_the_store(rank) if is_consequence(error) else mine
        announce(first, run_dir, rank, None)
        return first.exit_status
    if announce(first, run_dir, rank, store) and error.__cause__ is not None and users_place(error.__cause__):
        say(f"       the traceback is in {run_dir}/rank_{rank.rank}.log")
    if first.by != rank.rank and rank.store_outlives_ranks:
        time.sleep(SECOND_S)  # torchrun's table calls the root cause what it sees end first
    return first.exit_status


def _is_hopeless(error: BaseException, first: Failure, store: dist.Store, watch: Watch) -> bool:
    """Whether a restart would end in the same way, or is not wanted."""
    if watch.step:
        note_steps(store)
    at_once = not is_consequence(error) and not did_steps(store)
    return at_once or first.exit_status in NEVER_RETRIED or isinstance(error, KeyboardInterrupt)


def announce_first(error: BaseException, run_dir: Path, rank: Rank, store: dist.Store) -> None:
    """Announce what this rank ends of, unless another failed before."""
    first = Failure.of(error, rank.rank)
    with suppress(dist.DistError):  # whoever kept the store is gone
        first = first_failure(store, first, rank.attempt)
    announce(first, run_dir, rank, store)


def announce(first: Failure, run_dir: Path, rank: Rank, store: dist.Store | None) -> bool:
    """Leave what ended the run where it is looked for; tell the user if that is for this rank to do, and not done.

    Without a store the ranks of a node cannot agree on who tells, and the first of them does.
    """
    with suppress(OSError):
        if first.by == rank.rank:
            tell_torchrun(first)
    untold = ""
    try:
        if rank.rank in (0, first.by) and first.exit_status == PREEMPTED:
            write_preempted(run_dir)
        elif rank.rank in (0, first.by):
            write_failure(run_dir, first.rank, first.type, first.message)
    except OSError as error:  # the folder is full or gone
        if run_dir.is_dir():
            untold = f"\n       {run_dir}/status.json cannot be written ({error.strerror}) and tells what was before"
    tells = first.by == rank.rank and (store is not None or rank.local_rank == 0)
    with suppress(dist.DistError):
        tells = tells and not (store and told_before(store, f"{first.type}: {first.message}"))
    if tells:
        say(first.words + untold)
    if rank.rank == 0 and first.exit_status == FAILED and (run_dir / PLAN).exists():  # training began
        write_report(run_dir)
    return tells
