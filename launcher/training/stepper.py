"""What takes the steps of a run, from its settings and what was built of them."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from launcher.configure.parts import Parts, build_optimizer, build_scheduler, channels_last
from launcher.configure.schema import RunConfig
from launcher.training.batchnorm import check_local, convert_batchnorm
from launcher.training.buffers import StepBuffers
from launcher.training.compute import Compute
from launcher.training.exact_step import InTreeOrder
from launcher.training.finite import FiniteSteps
from launcher.training.reduction import Averaged, Reduction
from launcher.training.shard_batchnorm import ShardLayout
from launcher.training.step import Stepper
from launcher.training.wrap import wrap
from samplers import BatchPlan

log = logging.getLogger(__name__)


def compute_of(run: RunConfig, device: torch.device) -> Compute:
    """Device and number format of a rank."""
    return Compute.of(run.trainer.precision, device, channels_last(run, device))


def stepper_of(  # noqa: PLR0913 - each is a part of its own
    run: RunConfig,
    rank: int,
    device: torch.device,
    plan: BatchPlan,
    parts: Parts,
    steps: int,
    *,
    as_of_several: bool = False,
) -> Stepper:
    """What takes the steps of a rank; it changes the model to what ``batchnorm`` says.

    Args:
        run: the settings.
        rank: this one.
        device: of this rank.
        plan: who takes how many rows.
        parts: on the device.
        steps: the length of the scheduler.
        as_of_several: whether a group of one is to compute as one of several would.
    """
    shards = _convert_batchnorm(run, rank, device, parts.model)
    optimizer = build_optimizer(run, parts.model)
    model = wrap(
        parts.model,
        run.trainer.compile,
        run.ddp,
        device,
        averages=not run.batch.exact,
        as_of_several=as_of_several,
    )
    return Stepper(
        model=model,
        task=parts.task,
        optimizer=optimizer,
        scheduler=build_scheduler(run, optimizer, steps),
        compute=compute_of(run, device),
        reduction=_reduction(run, plan, rank, model, shards),
        clip_norm=run.trainer.clip_norm,
        finite=FiniteSteps(skips=run.trainer.on_nonfinite == "skip", most_in_a_row=run.trainer.max_skipped),
    )


def _convert_batchnorm(run: RunConfig, rank: int, device: torch.device, model: nn.Module) -> ShardLayout:
    """Let BatchNorm layers do as ``batchnorm`` says; gives what tells them of the shards in a micro-batch."""
    shards = ShardLayout()
    if run.batchnorm == "local" and not run.batch.exact and dist.is_initialized():
        check_local(model, device)
    converted = convert_batchnorm(model, run.batchnorm, device, shards)
    if run.batchnorm != "local" and not converted and rank == 0:
        log.warning("batchnorm=%s has no effect: the model has no BatchNorm layers", run.batchnorm)
    return shards


def _reduction(run: RunConfig, plan: BatchPlan, rank: int, model: nn.Module, shards: ShardLayout) -> Reduction:
    if run.batch.exact:
        return InTreeOrder(model, run.seed, [plan.shard_range(r) for r in range(plan.active)], rank)
    in_pieces = run.batchnorm == "shard" and len(plan.micro_batches(rank)) > 1
    return Averaged(
        model=model,
        seed=run.seed,
        rank=rank,
        divides_by=plan.active,
        weight=plan.share_rows(rank) / plan.global_size,
        shards=shards,
        buffers=StepBuffers(model, lambda layer: isinstance(layer, _BatchNorm)) if in_pieces else None,
    )
