"""The batch plan of the settings on the devices that are there."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from launcher.configure.schema import BatchConfig, RunConfig
from launcher.processes.errors import SettingsError
from samplers import BatchPlan


def plan_of(batch: BatchConfig, world_size: int) -> BatchPlan:
    """Who takes how many rows.

    Raises:
        SettingsError: where no plan fulfils the settings.
    """
    try:
        return BatchPlan(batch.global_size, world_size, batch.min_per_device, batch.max_per_device)
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error


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
    plan = plan_of(batch, world_size)
    if plan.idle == 0:
        return run, []
    most = (
        f"batch.global_size={batch.global_size} feeds {plan.active} devices with "
        f"batch.min_per_device={batch.min_per_device} rows each, and there are {world_size}"
    )
    needed = batch.min_per_device * world_size
    if batch.too_many_devices == "error":
        raise SettingsError(
            f"{most}; raise batch.global_size to {needed}, lower batch.min_per_device or start {plan.active} processes"
        )
    if batch.too_many_devices == "idle":
        note = (
            f"{plan.idle} of {world_size} devices idle: {most}; raise batch.global_size to {needed}, lower "
            "batch.min_per_device, or let it grow with batch.too_many_devices=grow"
        )
        return run, [note]
    return _grown(run, needed, most)


def in_config_words(message: str) -> str:
    """A message about a plan or a sampler in the names of the settings."""
    message = re.sub(r"\bworld_size\b", "processes", message)
    return re.sub(r"(?<![\w.])(global_size|min_per_device|max_per_device|tail|pad_weight)\b(?!:)", r"batch.\1", message)


def _grown(run: RunConfig, size: int, most: str) -> tuple[RunConfig, list[str]]:
    factor = size / run.batch.global_size
    notes = [f"batch.global_size grows from {run.batch.global_size} to {size}: {most}"]
    grown = replace(run, batch=replace(run.batch, global_size=size))
    plan_of(grown.batch, size // run.batch.min_per_device)
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
