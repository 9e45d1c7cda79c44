"""``mode=plan``: what a run would be, without starting it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from launcher.checkpoints import settings
from launcher.checkpoints.export import check_export
from launcher.checkpoints.load import load_weights
from launcher.configure.devices import plan_of
from launcher.configure.parts import Parts, build_optimizer, build_parts, build_scheduler, channels_last
from launcher.configure.rows import sampler_of, seeded
from launcher.configure.run_folder import check_run_folder
from launcher.configure.schema import RunConfig
from launcher.configure.start import starts_ranks
from launcher.processes.environment import Rank
from launcher.processes.group import backend_of, cuda_devices, find_device
from launcher.processes.threads import threads_per_rank, usable_cores, users_own_threads
from launcher.training.batchnorm import check_local, convert_batchnorm
from launcher.training.best import BestRule
from launcher.training.buffers import StepBuffers
from launcher.training.cadence import in_words
from launcher.training.compute import Compute, exactly
from launcher.training.exact_step import check_layers
from launcher.training.fit import check_parts
from launcher.training.patience import Patience
from launcher.training.resume import compare, look, where_it_stands
from launcher.training.shard_batchnorm import ShardLayout
from launcher.training.stop import StopRule
from launcher.training.wrap import check_wrap
from samplers.words import counted

CPU = torch.device("cpu")
NOTHING = "mode=plan: nothing was started, nothing was written"


def plan_here(run: RunConfig, rank: Rank, run_dir: Path, run_dir_is_new: bool, notes: Sequence[str]) -> str:
    """``plan_text`` of a run that is to start on this node.

    Raises:
        SettingsError: where the run could not start, for what this node or the run folder holds too.
    """
    starts_ranks(run.launch, rank)
    last = replace(rank, local_rank=rank.local_world_size - 1)
    device = find_device(last, run.launch.device, cuda_devices(run.launch.device))
    backend_of(run.launch.backend, device)
    check_run_folder(run_dir, run_dir_is_new, continues=run.checkpoint.resume == "auto")
    return plan_text(run, rank, run_dir, [*notes, *continued(run, run_dir)], device)


def plan_text(
    run: RunConfig, rank: Rank, run_dir: Path, notes: Sequence[str], device: torch.device | None = None
) -> str:
    """Batch plan, ranks, rows and folder as text; everything that a run needs is built, and nothing is started.

    Args:
        run: its settings.
        rank: the first one.
        run_dir: the run folder.
        notes: what the user should know.
        device: of the ranks; None: that is not known here.

    Raises:
        SettingsError: where the run could not start.
    """
    return "\n".join([*plan_lines(run, rank, notes, device), f"run folder       {run_dir}", NOTHING])


def plan_lines(run: RunConfig, rank: Rank, notes: Sequence[str], device: torch.device | None = None) -> list[str]:
    """What ``plan_text`` says of any run folder."""
    parts = build_parts(replace(run, mode="train"), CPU)
    plan = plan_of(run, rank.world_size)
    rows = seeded(run, parts.train, "data.train")  # type: ignore[arg-type]
    report = sampler_of(run, plan, Rank(), rows, compare_ranks=False).report()
    steps = min(run.trainer.max_steps or sys.maxsize, report.steps(run.trainer.epochs))
    _check_rest(run, parts, steps)
    if device == CPU:
        with exactly(run.batch.exact):
            check_parts(run, parts, Compute.of(run.trainer.precision, CPU, channels_last(run, CPU)))
    _check_model(run, parts.model, plan.active > 1, device)
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


def _check_model(run: RunConfig, model: nn.Module, several: bool, device: torch.device | None) -> None:
    """Refuse layers and options that ranks would refuse."""
    if several and device is not None and run.batchnorm == "local" and not run.batch.exact:
        check_local(model, device)
    convert_batchnorm(model, run.batchnorm, CPU, ShardLayout())
    check_wrap(model, run.ddp, averages=several and not run.batch.exact)
    if run.batch.exact:
        check_layers(model)
        StepBuffers(model)


def continued(run: RunConfig, run_dir: Path) -> list[str]:
    """What the run would continue from, and with which other settings.

    Raises:
        SettingsError: where it cannot continue.
    """
    found = look(run.checkpoint.resume, run_dir)
    if found is None:
        return []
    folder = Path(found["folder"])
    facts, changes = compare(run, found["place"], folder)
    others = [f"with other settings: {settings.in_words(changes)}"] if changes else []
    return [f"continues from {where_it_stands(folder, facts)}", *others]


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
