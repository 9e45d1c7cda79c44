"""Running statistics, which each rank keeps by itself, combined when someone reads them."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

log = logging.getLogger(__name__)


def combine_buffers(model: nn.Module, weight: float) -> None:
    """Give every rank the same buffers; a collective over the default group, nothing without one.

    Running means and variances become their average weighted by ``weight``, the part of the global batch that this
    rank takes (the weights of all ranks sum to one). Averaging is linear, as the running averages are, so how often
    they are combined does not change what comes out. All other buffers are taken from rank 0; where another rank's
    differ, that is said.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    running = running_statistics(model)
    if running:
        _average(running, weight)
    averaged = {id(buffer) for buffer in running}
    others = {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in averaged}
    if others:
        _take_from_rank_zero(others)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of all normalisation layers, in the order of the modules."""
    layers = [m for m in model.modules() if isinstance(m, _NormBase)]
    return [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]


def _average(running: list[Tensor], weight: float) -> None:
    flat = torch.cat([buffer.double().flatten() for buffer in running]) * weight
    dist.all_reduce(flat)
    sizes = [buffer.numel() for buffer in running]
    for buffer, mean in zip(running, torch.split(flat, sizes), strict=True):
        buffer.copy_(mean.view_as(buffer))


def _take_from_rank_zero(buffers: dict[str, Tensor]) -> None:
    mine = {name: buffer.contiguous().reshape(-1).view(torch.uint8) for name, buffer in buffers.items()}
    flat = torch.cat(list(mine.values()))
    dist.broadcast(flat, 0)
    pieces = torch.split(flat, [piece.numel() for piece in mine.values()])
    for (name, buffer), piece in zip(buffers.items(), pieces, strict=True):
        if not torch.equal(piece, mine[name]):
            log.warning(
                "buffer %s of rank 0 is kept, this rank's differs; ddp.broadcast_buffers=true keeps them equal", name
            )
            buffer.copy_(piece.clone().view(buffer.dtype).view_as(buffer))
