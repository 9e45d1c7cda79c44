"""What BatchNorm's statistics are taken over: the setting ``batchnorm``.

``local`` is torch's own: the micro-batch of one rank. ``shard``: each shard of the micro-batch by itself, so that the
number of ranks does not matter. ``sync``: the micro-batches of all ranks together. The layers of a finished model are
converted in place, by their class alone: parameters, buffers, hooks, names and whoever holds a layer stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from launcher.configure.schema import BATCHNORM
from launcher.processes.errors import SettingsError, one_of
from launcher.training.converted import AnyBatchNorm, ConvertedBatchNorm, converted_class
from launcher.training.shard_batchnorm import ShardBatchNorm, ShardLayout
from launcher.training.sync_batchnorm import CudaSyncBatchNorm, SyncBatchNorm

OF_TORCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def convert_batchnorm(model: nn.Module, how: str, device: torch.device, shards: ShardLayout) -> int:
    """Convert the BatchNorm layers of ``model`` in place.

    Names and values of the state dict stay, so do the answers in evaluation mode. Other layers are left alone.

    Args:
        model: finished, not yet compiled or wrapped.
        how: ``batchnorm``: ``local``, ``shard`` or ``sync``.
        device: of this rank. On CUDA, ``sync`` is torch's SyncBatchNorm; elsewhere, where torch has none, our own.
        shards: what the layers read with ``shard``; each holds on to it.

    Returns:
        The number of layers that the setting is about, 0 with ``local``.

    Raises:
        SettingsError: for a layer that cannot be converted; then none is.
    """
    one_of("batchnorm", how, BATCHNORM)
    if how == "local":
        return 0
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    cuda_sync = how == "sync" and device.type == "cuda"
    layers_and_classes = [
        (name, layer, _converted(f"batchnorm={how}: layer {name or 'model'}", layer, _way(how, cuda_sync=cuda_sync)))
        for name, layer in layers
        if not (cuda_sync and isinstance(layer, nn.SyncBatchNorm))
    ]
    for name, layer, converted in layers_and_classes:
        layer.__class__ = converted
        if isinstance(layer, ShardBatchNorm):
            layer.shards, layer.layer_name = shards, name or "model"
    return len(layers)


def check_local(model: nn.Module, device: torch.device) -> None:
    """Refuse layers that ``batchnorm=local`` leaves alone and that cannot work on several ranks without CUDA.

    Raises:
        SettingsError: naming the layer.
    """
    for name, layer in model.named_modules():
        if type(layer) is nn.SyncBatchNorm and device.type != "cuda":
            raise SettingsError(
                f"batchnorm=local: layer {name or 'model'} is a SyncBatchNorm, which torch has for CUDA devices alone; "
                "set batchnorm=sync, which computes the same on the CPU"
            )


def _way(how: str, *, cuda_sync: bool) -> type[Any]:
    if how == "shard":
        return ShardBatchNorm
    return CudaSyncBatchNorm if cuda_sync else SyncBatchNorm


def _converted(what: str, layer: _BatchNorm, way: type[Any]) -> type[ConvertedBatchNorm]:
    """The class that ``layer`` gets; ``what`` opens the message where there is none."""
    kind = layer.made_of[1] if isinstance(layer, ConvertedBatchNorm) else type(layer)
    if issubclass(kind, LazyModuleMixin):
        raise SettingsError(
            f"{what} is a {kind.__name__} that has not seen its first rows; give it num_features (torch.nn."
            f"{kind.__name__.removeprefix('Lazy')}) or call the model once where it is made"
        )
    own = "forward" in vars(layer) or kind.forward is not _BatchNorm.forward
    if own and kind is not nn.SyncBatchNorm:
        of_torch = next((base.__name__ for base in kind.__mro__ if base in OF_TORCH), "BatchNorm2d")
        raise SettingsError(
            f"{what} is of class {kind.__name__}, whose forward is its own; use torch.nn.{of_torch} or batchnorm=local"
        )
    replaced = AnyBatchNorm if kind is nn.SyncBatchNorm else kind
    return converted_class(way, replaced)  # type: ignore[arg-type]  # a class is hashable
