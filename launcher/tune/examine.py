"""What is looked at beside the probes, in a process that ends with it: gradients, and BatchNorm's maps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from launcher.checkpoints.load import load_weights
from launcher.configure.parts import Parts, build_order, build_parts
from launcher.configure.rows import seeded
from launcher.configure.schema import RunConfig
from launcher.context import RankContext
from launcher.data.loaders import loader
from launcher.processes.threads import use_threads
from launcher.seeds import stream_seed
from launcher.training.compute import Compute
from launcher.training.loop import tell_epoch
from launcher.training.stepper import compute_of
from launcher.tune.batchnorm_map import values_per_row
from launcher.tune.measure import Order
from launcher.tune.memory import limited_to
from launcher.tune.noise_scale import FEWEST, NoiseScale, noise_scale, unknown
from launcher.tune.probing import apart

log = logging.getLogger(__name__)

MOST, ENOUGH = 32, 8
"""Micro-batches whose gradients are compared at most, and for which micro-batches may be smaller than recommended."""
PART = 4
"""The gradients that are kept take this part of the memory at most."""
PATIENCE_S = 10.0
"""Seconds after which no more gradients are taken than must be."""
FP16_SCALE = 1024.0
"""Keeps small gradients in the range of float16; the noise scale does not depend on it."""


@dataclass(frozen=True)
class Examined:
    """What was found.

    Attributes:
        noise_scale: of the gradient, at the weights that the run starts from.
        smallest_map: the BatchNorm layer with the fewest values per channel, and how many for each row; None: no layer.
        momentum: of the BatchNorm layers; None: there are none, or they average over all batches.
    """

    noise_scale: NoiseScale
    smallest_map: tuple[str, float] | None
    momentum: float | None


def look(order: Order, context: RankContext, timeout_s: float) -> Examined:
    """Examine in a process of its own; what keeps something from being known is told in its place.

    Args:
        order: with the recommended micro-batch.
        context: of this rank.
        timeout_s: seconds that it may take.
    """
    try:
        return apart(examine, order, context, timeout_s, [])
    except Exception as error:
        log.info("gradients and BatchNorm layers were not looked at", exc_info=True, extra={"file_only": True})
        return Examined(unknown(f"{type(error).__name__}: {error}".splitlines()[0], 0, order.rows), None, None)


def examine(order: Order) -> Examined:
    """Look at gradients and BatchNorm layers with micro-batches of the order's size at most, of real rows."""
    use_threads(order.threads)
    with limited_to(order.available_bytes) if order.device.type == "cpu" else nullcontext():
        return examined(replace(order.run, mode="train"), order.device, order.rows, order.available_bytes)


def examined(run: RunConfig, device: torch.device, rows: int, available_bytes: int) -> Examined:
    """Look at gradients and BatchNorm layers.

    Args:
        run: the settings, of mode=train.
        device: of the rank.
        rows: the recommended micro-batch; there are none with more rows.
        available_bytes: of main memory, where gradients are kept.
    """
    parts, compute = build_parts(run, device), compute_of(run, device)
    assert parts.train is not None  # noqa: S101 - mode=train builds it
    if run.checkpoint.load:
        load_weights(parts.model, run.checkpoint.load)
    n = len(build_order(run, parts.train))
    micro_rows, count = sizes(n, rows, most_kept(parts.model, available_bytes))
    first = next(_batches(run, parts.train, min(rows, n), 1))
    found = values_per_row(parts.model, lambda: _losses(parts, compute, first), min(rows, n))
    gradients = list(_gradients(parts, compute, _batches(run, parts.train, micro_rows, count)))
    scale = noise_scale(gradients, micro_rows) if gradients else unknown("memory or rows are too few", 0, micro_rows)
    layers = [layer for layer in parts.model.modules() if isinstance(layer, _BatchNorm)]
    return Examined(scale, found, layers[0].momentum if layers else None)


def sizes(n: int, rows: int, most: int) -> tuple[int, int]:
    """Rows of the micro-batches whose gradients are compared, and how many; no row stands in two of them.

    Args:
        n: rows of data.train.
        rows: of the recommended micro-batch.
        most: gradients that can be kept.

    >>> sizes(1437, 64, 100), sizes(1437, 600, 100), sizes(50_000, 512, 10), sizes(3, 16, 100), sizes(1437, 64, 2)
    ((64, 22), (179, 8), (512, 10), (1, 3), (64, 0))
    """
    if most < FEWEST:
        return rows, 0
    micro_rows = max(1, min(rows, n // ENOUGH))
    return micro_rows, min(MOST, most, n // micro_rows)


def most_kept(model: nn.Module, available_bytes: int) -> int:
    """Gradients that have room in the memory that they may take."""
    each = 4 * sum(weight.numel() for weight in _learned(model))
    return available_bytes // PART // max(1, each)


def _learned(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _batches(run: RunConfig, dataset: Dataset[Any], rows: int, count: int) -> Iterator[Any]:
    """The first micro-batches of an epoch."""
    real = seeded(run, dataset, "data.train")
    tell_epoch(real, 0)
    indices = build_order(run, dataset).indices(0, np.arange(rows * count))
    batches = [[int(i) for i in indices[k * rows : (k + 1) * rows]] for k in range(count)]
    seed = stream_seed(run.seed, "workers", 0)
    yield from loader(real, batches, 0, torch.device("cpu"), seed, keep=False)  # type: ignore[arg-type]


def _losses(parts: Parts, compute: Compute, batch: Any) -> Tensor:
    with compute.autocast():
        return parts.task.loss(parts.model, compute.rows(batch)).float()


def _gradients(parts: Parts, compute: Compute, batches: Iterable[Any]) -> Iterator[Sequence[Tensor]]:
    """One for each micro-batch; where it takes long, not for all."""
    began = time.monotonic()
    for number, batch in enumerate(batches):
        if number >= ENOUGH and time.monotonic() - began > PATIENCE_S:
            return
        yield _gradient(parts, compute, batch)


def _gradient(parts: Parts, compute: Compute, batch: Any) -> Sequence[Tensor]:
    """The gradient of the mean loss, in main memory."""
    scale = FP16_SCALE if compute.dtype is torch.float16 else 1.0
    weights = _learned(parts.model)
    loss = _losses(parts, compute, batch).mean() * scale
    found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return [gradient.detach().float().cpu() for gradient in found]
