"""``mode=plan``: what a run would be, without starting it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from launcher.checkpoints.export import check_export
from launcher.checkpoints.load import load_weights
from launcher.configure.devices import in_config_words, plan_of
from launcher.configure.parts import Parts, build_optimizer, build_parts, build_scheduler
from launcher.configure.schema import RunConfig
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.processes.threads import threads_per_rank, usable_cores, users_own_threads
from launcher.training.best import BestRule
from launcher.training.cadence import in_words
from launcher.training.patience import Patience
from launcher.training.stop import StopRule
from samplers.words import counted

NOTHING = "mode=plan: nothing was started, nothing was written"


def plan_text(run: RunConfig, rank: Rank, run_dir: Path, notes: list[str]) -> str:
    """Batch plan, ranks, rows and folder as text; everything that a run needs is built, and nothing is started.

    Raises:
        SettingsError: where the run could not start.
    """
    return "\n".join([*plan_lines(run, rank, notes), f"run folder       {run_dir}", NOTHING])


def plan_lines(run: RunConfig, rank: Rank, notes: Sequence[str]) -> list[str]:
    """What ``plan_text`` says of any run folder."""
    parts = build_parts(replace(run, mode="train"), torch.device("cpu"))
    plan = plan_of(run, rank.world_size)
    try:
        report = plan.report(len(parts.train), run.batch.tail)  # type: ignore[arg-type]
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error
    steps = min(run.trainer.max_steps or sys.maxsize, report.steps(run.trainer.epochs))
    _check_rest(run, parts, steps)
    shares = [f"  rank {rank:<10}{_rows(plan.micro_batches(rank))}" for rank in range(min(plan.active, 16))]
    more = [f"  ... and {plan.active - len(shares)} more"] if plan.active > len(shares) else []
    return [
        *(f"note: {note}" for note in notes),
        str(report),
        *shares,
        *more,
        f"run              {counted(run.trainer.epochs, 'epoch')}, {counted(steps, 'step')}",
        f"devices          {_devices(run, rank)}",
        f"checkpoints      {in_words(run.checkpoint)}",
    ]


def _check_rest(run: RunConfig, parts: Parts, steps: int) -> None:
    """Build, load and read what a run would only get to later."""
    build_scheduler(run, build_optimizer(run, parts.model), steps)
    evaluated = [] if parts.test is None else ["loss", *parts.metrics]
    StopRule.parse(run.trainer.stop_when, evaluated)
    Patience.parse(run.trainer.patience, run.checkpoint.keep_best, evaluated)
    BestRule.parse(run.checkpoint.keep_best, evaluated)
    check_export(run.checkpoint.export)
    if run.checkpoint.load:
        load_weights(parts.model, run.checkpoint.load)


def _devices(run: RunConfig, rank: Rank) -> str:
    threads = threads_per_rank(
        rank,
        run.launch.threads_per_rank,
        users_own_threads(rank, os.environ),
        usable_cores(),
        exact=run.batch.exact,
    )
    cuda = torch.cuda.device_count() if run.launch.device != "cpu" else 0
    kind = f"cuda, of which this node shows {cuda}" if cuda or run.launch.device == "cuda" else "cpu"
    why = " (batch.exact=true; more with launch.threads_per_rank)" if run.batch.exact and threads == 1 else ""
    return f"{rank.world_size} on {kind}, {counted(threads, 'thread')} each{why}"


def _rows(sizes: tuple[int, ...]) -> str:
    return counted(sizes[0], "row") if len(sizes) == 1 else " + ".join(map(str, sizes)) + " rows"
