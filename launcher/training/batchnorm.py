"""BatchNorm's running statistics, which each rank keeps by itself, combined when someone reads them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def combine_buffers(model: nn.Module, weight: float) -> None:
    """Give every rank the same buffers; a collective over the default group, nothing without one.

    Running means and variances become their average weighted by ``weight``, the part of the global batch that this
    rank takes (the weights of all ranks sum to one). Averaging is linear, as the running averages are, so how often
    they are combined does not change what comes out. All other buffers are taken from rank 0.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    running = running_statistics(model)
    if running:
        flat = torch.cat([buffer.double().flatten() for buffer in running]) * weight
        dist.all_reduce(flat)
        sizes = [buffer.numel() for buffer in running]
        for buffer, mean in zip(running, torch.split(flat, sizes), strict=True):
            buffer.copy_(mean.view_as(buffer))
    averaged = {id(buffer) for buffer in running}
    for buffer in model.buffers():
        if id(buffer) not in averaged:
            dist.broadcast(buffer, 0)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of all BatchNorm layers, in the order of the modules."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    return [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]
