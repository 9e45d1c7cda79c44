"""The micro-batch that fits and pays: all ranks try one size after the other, and agree on each."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from launcher.configure.schema import RunConfig
from launcher.context import RankContext
from launcher.processes.errors import PlainError, SettingsError
from launcher.processes.failures import AnotherFailedError, Failure
from launcher.processes.threads import usable_cores
from launcher.tune.measure import Order
from launcher.tune.memory import available_here
from launcher.tune.plan_sizes import grain_of, share_of, sizes_of, with_size
from launcher.tune.probing import Outcome, attempt, exchange, joined, prepare
from launcher.tune.result import Probe, Tuning
from launcher.tune.search import Bounds
from launcher.tune.steer import Steer
from launcher.tune.words import in_bytes, per_second
from samplers.words import counted

log = logging.getLogger(__name__)

PASSES = 10
"""Micro-batches that a probe's time is shared by: three steps of two, one evaluation, and what is built before."""


@dataclass(frozen=True)
class Tried:
    """What is known so far.

    Attributes:
        probes: in the order they were run.
        available_bytes: of the device with the least.
        train_rows: of ``data.train``; None: not known.
        load: the highest of all machines.
    """

    probes: tuple[Probe, ...] = ()
    available_bytes: int = 0
    train_rows: int | None = None
    load: float = 0.0

    def and_then(self, rows: int, outcomes: Sequence[Outcome]) -> Tried:
        """With what came of one more size, which failed on no rank but for lack of memory."""
        measured = [outcome.measured for outcome in outcomes if outcome.measured is not None]
        return Tried(
            (*self.probes, joined(rows, measured)),
            min(each["available_bytes"] for each in measured),
            max((each["train_rows"] for each in measured if each["train_rows"]), default=self.train_rows),
            max(self.load, *(outcome.load for outcome in outcomes)),
        )


def find_size(run: RunConfig, context: RankContext, ranks: int) -> Tuning:
    """Try sizes until it is known which fit and pay; every rank gets the same answer, and is as it was before.

    Args:
        run: the settings.
        context: of this rank.
        ranks: that work.

    Raises:
        SettingsError: where nothing fits, or a size takes too long.
        PlainError: where a rank does not answer.
        Exception: what the run's own parts raise, but for lack of memory.
    """
    prepare()
    first = first_order(with_size(run, None), context, ranks)
    tried, rows = Tried(), first.rows
    next_one: int | None = rows
    while next_one is not None:
        rows = next_one
        outcomes = _tried_on_all(_order(first, run, ranks, rows), run, context, ranks, tried)
        tried = tried.and_then(rows, outcomes)
        if context.rank.rank == 0:
            log.info("%s", in_words(tried.probes[-1]))
        steer = _steer(run, ranks, first.rows, tried)
        next_one = steer.next_size(tried.probes, tried.available_bytes)
    answer = steer.answer(tried.probes, tried.available_bytes, tried.load)
    return replace(answer, train_rows=tried.train_rows, target=run.tune.fast_enough)


def in_words(probe: Probe) -> str:
    """One line about a size that was tried."""
    size = f"tried {counted(probe.rows, 'row')}:"
    if not probe.fits:
        return f"{size} does not fit; {probe.why_not}"
    peak = f"{in_bytes(probe.peak_bytes)}, " if probe.peak_bytes else ""
    return f"{size} fits, {peak}{per_second(probe.rows_per_s)} rows/s per device"


def first_order(run: RunConfig, context: RankContext, ranks: int) -> Order:
    """The smallest size."""
    grain = grain_of(run, ranks)
    local = min(context.rank.local_world_size, ranks)
    return Order(
        run=run,
        rows=grain if grain > 1 else run.batch.min_per_device,
        micro_batches=1,
        several=ranks > 1,
        grain=grain if run.shard_rows else None,
        device=context.device,
        threads=context.threads,
        available_bytes=available_here(local),
    )


def _order(first: Order, run: RunConfig, ranks: int, rows: int) -> Order:
    """A size to try: of a share that is larger two micro-batches, since gradients stay while the next one runs."""
    in_pieces = share_of(run, ranks) > rows and run.batchnorm != "sync"
    return replace(first, rows=rows, micro_batches=2 if in_pieces else 1)


def _tried_on_all(order: Order, run: RunConfig, context: RankContext, ranks: int, tried: Tried) -> list[Outcome]:
    smaller_ran = any(probe.fits and probe.rows < order.rows for probe in tried.probes)
    load = os.getloadavg()[0] / usable_cores()
    error: Exception | None = None
    try:
        measured = attempt(order, context, run.tune.timeout_s, smaller_ran=smaller_ran)
        mine = Outcome(asdict(measured), None, names_size=True, load=load)
    except Exception as found:  # noqa: BLE001 - it is raised below, when all know of it
        plain = isinstance(found, SettingsError | PlainError)
        error, mine = found, Outcome(None, Failure.of(found, context.rank.rank).headline, names_size=plain, load=load)
    outcomes = exchange(context, ranks, len(tried.probes), mine, run.tune.timeout_s)
    bad = [rank for rank, outcome in enumerate(outcomes) if outcome.failed]
    if not bad:
        return outcomes
    if context.rank.rank == 0 and not outcomes[bad[0]].names_size:
        size = counted(order.rows, "row")
        log.error("a micro-batch of %s failed, and not for lack of memory: %s", size, outcomes[bad[0]].failed)
    if error is not None and context.rank.rank == bad[0]:
        raise error
    raise AnotherFailedError(f"rank {bad[0]} failed")


def _steer(run: RunConfig, ranks: int, least: int, tried: Tried) -> Steer:
    caps: Mapping[str, int | None] = {
        f"data.train has {counted(tried.train_rows or 0, 'row', ',')}": tried.train_rows,
        f"tune.max_rows={run.tune.max_rows}": run.tune.max_rows,
    }
    known = [(rows, why) for why, rows in caps.items() if rows is not None]
    cap, capped_by = min(known, default=(least, "the rows of data.train are not known"))
    grain = grain_of(with_size(run, None), ranks)
    return Steer(
        Bounds(least, max(least, cap // grain * grain), capped_by, grain, run.tune.max_probes),
        sizes_of(run, ranks),
        run.tune.fast_enough,
        run.tune.timeout_s / PASSES,
        f"tune.timeout_s={run.tune.timeout_s:g}",
    )
