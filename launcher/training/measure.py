"""What measures a rank while it trains."""

from __future__ import annotations

import logging

import torch

from launcher.configure.parts import Parts
from launcher.configure.schema import RunConfig
from launcher.context import RankContext
from launcher.observe.clock import clock_of
from launcher.observe.flops import Flops, flops_of_a_row, peak_of
from launcher.observe.gauges import CpuUse, Paced, gpu_use
from launcher.observe.meter import RunMeter
from launcher.observe.profile import FOLDER, Profiler, WindowProfiler, Windows, activities
from launcher.processes.errors import first_line
from launcher.training.check import first_rows
from launcher.training.evaluate import evaluating
from launcher.training.stepper import compute_of

log = logging.getLogger(__name__)
MEGA = 1_000_000


def meter_of(run: RunConfig, context: RankContext, parts: Parts, place: torch.device, ranks: int) -> RunMeter:
    """What measures this rank while it trains; the first rank tells of the cores of its machine.

    Args:
        run: the settings.
        context: where the rank is.
        parts: of the run.
        place: where the process group takes numbers.
        ranks: that work.
    """
    device = context.device
    gauges = [Paced(gpu_use(device)), *([Paced(CpuUse())] if context.rank.rank == 0 else [])]
    flops = _flops(run, parts, device) if device.type == "cuda" else None
    return RunMeter(clock_of(device, alone=ranks == 1), device, place, gauges, flops)


def _flops(run: RunConfig, parts: Parts, device: torch.device) -> Flops | None:
    """What the model computes, counted on the first rows, and what the device could; None where it is not known."""
    peak = peak_of(torch.cuda.get_device_name(device), run.trainer.precision)
    if peak is None or parts.train is None:
        return None
    compute, (batch, rows) = compute_of(run, device), first_rows("data.train", parts.train)
    try:
        with evaluating(parts.model), compute.autocast():
            return Flops(flops_of_a_row(lambda: parts.task.loss(parts.model, compute.rows(batch)), rows), peak)
    except Exception as error:  # noqa: BLE001 - torch's counter does not know every operation
        log.info("speed/flop_utilisation is not told, as the operations cannot be counted: %s", first_line(error))
        return None


def profiler_of(run: RunConfig, context: RankContext, first: int) -> Profiler:
    """What records the steps of this rank, after the ``first`` ones that the run had done before."""
    asked, rank = run.profile, context.rank.rank
    if not asked.enabled or (rank and asked.ranks == "first"):
        return Profiler()
    options = {
        "activities": activities(context.device),
        "record_shapes": asked.shapes,
        "profile_memory": asked.memory,
        "with_stack": asked.stacks,
    }
    most = int(asked.most_mb * MEGA)
    windows = Windows(asked.wait, asked.warmup, asked.active, asked.repeat, options, most)
    return WindowProfiler(context.run_dir / FOLDER, rank, windows, first)
