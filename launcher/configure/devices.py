"""The batch plan of the settings on the devices that are there."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from launcher.configure.schema import AUTO, RunConfig
from launcher.processes.errors import SettingsError
from samplers import BatchPlan
from samplers.words import counted


def plan_of(run: RunConfig, world_size: int) -> BatchPlan:
    """Who takes how many rows; with ``batch.exact=true``, of one shard at a time.

    Raises:
        SettingsError: where no plan fulfils the settings.
    """
    batch = run.batch
    try:
        plan = BatchPlan(batch.global_size, world_size, batch.min_per_device, batch.most_at_once, run.shard_rows)
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error
    if run.batchnorm == "sync" and len(plan.micro_batches(0)) > 1:
        raise SettingsError(
            f"batchnorm=sync needs the whole global batch at once, and batch.max_per_device={batch.max_per_device} "
            f"cuts the shares of {counted(plan.active, 'device')} into {len(plan.micro_batches(0))} micro-batches; "
            "raise batch.max_per_device or set batchnorm=shard"
        )
    return replace(plan, max_per_device=plan.largest_shard) if batch.exact else plan


def for_devices(run: RunConfig, world_size: int) -> tuple[RunConfig, list[str]]:
    """Settle what happens to more devices than the global batch can feed.

    Returns:
        The settings, with a larger global batch where ``batch.too_many_devices=grow`` asks for one, and what the user
        should know about it.

    Raises:
        SettingsError: where ``batch.too_many_devices=error``, or where no plan fulfils the settings.
    """
    if run.mode == "evaluate":
        return run, []
    batch = run.batch
    plan = plan_of(run, world_size)
    ignored = _ignored(run)
    if plan.idle == 0:
        return run, ignored
    least, option = (run.shard_rows, "shard_rows") if run.shard_rows else (batch.min_per_device, "min_per_device")
    most = (
        f"batch.global_size={batch.global_size} feeds {counted(plan.active, 'device')} with batch.{option}={least} "
        f"rows each, and there are {world_size}"
    )
    needed = least * world_size
    if batch.too_many_devices == "error":
        raise SettingsError(
            f"{most}; raise batch.global_size to {needed}, lower batch.{option} or start "
            f"{counted(plan.active, 'process')}"
        )
    if batch.too_many_devices == "idle":
        grow = "" if batch.exact else ", or let it grow with batch.too_many_devices=grow"
        idle = f"{plan.idle} of {world_size} devices {'idles' if plan.idle == 1 else 'idle'}"
        note = f"{idle}: {most}; raise batch.global_size to {needed}, lower batch.{option}{grow}"
        return run, [*ignored, note]
    grown, notes = _grown(run, needed, most)
    return grown, [*ignored, *notes]


def _ignored(run: RunConfig) -> list[str]:
    """Settings that have no effect beside others."""
    found = []
    if run.batch.shard_rows and not run.shard_rows:
        found.append(
            f"batch.shard_rows={run.batch.shard_rows} has no effect without batch.exact=true or batchnorm=shard"
        )
    if run.batch.exact and run.batch.max_per_device:
        found.append(
            f"batch.max_per_device={run.batch.max_per_device} has no effect with batch.exact=true, which takes one "
            "shard at a time; batch.shard_rows says how many rows that is"
        )
    if run.mode == "plan" and run.batch.max_per_device == AUTO and not run.batch.exact:
        found.append("batch.max_per_device=auto is found when the run starts; here shares are not cut")
    if run.batch.exact and run.ddp:
        names = ", ".join(f"ddp.{name}" for name in run.ddp)
        found.append(f"{names}: no effect with batch.exact=true, which does without DistributedDataParallel")
    return found


def in_config_words(message: str) -> str:
    """A message about a plan or a sampler in the names of the settings."""
    message = re.sub(r"\bworld_size\b", "processes", message)
    return re.sub(
        r"(?<![\w.])(global_size|min_per_device|max_per_device|shard_rows|tail|pad_weight)\b(?!:)", r"batch.\1", message
    )


def _grown(run: RunConfig, size: int, most: str) -> tuple[RunConfig, list[str]]:
    factor = size / run.batch.global_size
    notes = [f"batch.global_size grows from {run.batch.global_size} to {size}: {most}"]
    grown = replace(run, batch=replace(run.batch, global_size=size))
    plan_of(grown, size // (run.shard_rows or run.batch.min_per_device))
    if run.batch.lr_rule == "none":
        return grown, notes
    rate = run.optimizer.get("lr")
    if not isinstance(rate, int | float):
        raise SettingsError(
            f"batch.lr_rule={run.batch.lr_rule} needs optimizer.lr, found {rate}; set it or batch.lr_rule=none"
        )
    new = rate * (factor if run.batch.lr_rule == "linear" else math.sqrt(factor))
    notes.append(f"optimizer.lr goes from {rate:g} to {new:g} by batch.lr_rule={run.batch.lr_rule}")
    return replace(grown, optimizer={**run.optimizer, "lr": new}), notes
