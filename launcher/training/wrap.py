"""The model as the step uses it: compiled, and reduced over the ranks by DistributedDataParallel."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher.processes.errors import SettingsError, closest, first_line

RESERVED = ("module", "device_ids", "output_device", "process_group", "device_mesh")


def wrap(
    model: nn.Module,
    compiled: bool | str,
    options: dict[str, Any],
    device: torch.device,
    *,
    averages: bool = True,
    as_of_several: bool = False,
) -> nn.Module:
    """Compile ``model`` in place where asked for, and wrap it where there are several ranks.

    Args:
        model: on ``device``; the names of its state dict stay.
        compiled: ``trainer.compile``: true, or the name of a backend of torch.compile.
        options: ``ddp``, arguments of DistributedDataParallel.
        device: of this rank.
        averages: whether DistributedDataParallel averages the gradients; else the model stays unwrapped.
        as_of_several: whether a single rank that has a group is wrapped too, to compute as one of several would.

    Raises:
        SettingsError: as ``check_wrap``, and for what DistributedDataParallel refuses.
    """
    if compiled:
        # Exact mode: one kernel for each size, not one for all that depends on which sizes came first.
        _compile(model, "inductor" if compiled is True else compiled, dynamic=None if averages else False)
    several = dist.is_initialized() and (as_of_several or dist.get_world_size() > 1)
    check_wrap(model, options, averages=averages and several)
    if not averages or not several:
        return model
    parameters = inspect.signature(DistributedDataParallel).parameters
    # Buffers are combined when they are read: no broadcast per forward. The switch has another name since torch 2.13.
    switch = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    asked = {"gradient_as_bucket_view": True, **options}
    asked[switch] = options.get("forward_sync_buffers", options.get("broadcast_buffers", False))
    if switch == "forward_sync_buffers":
        asked.pop("broadcast_buffers", None)
    ids = [device.index] if device.type == "cuda" else None
    try:
        return DistributedDataParallel(model, device_ids=ids, **asked)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SettingsError(f"ddp: DistributedDataParallel refuses: {first_line(error)}") from error


def check_wrap(model: nn.Module, options: dict[str, Any], *, averages: bool) -> None:
    """Refuse what ``wrap`` refuses.

    Args:
        model: as ``wrap`` gets it.
        options: likewise.
        averages: whether DistributedDataParallel is to average gradients of several ranks.

    Raises:
        SettingsError: for an option that it does not have, or a layer that it cannot reduce.
    """
    parameters = inspect.signature(DistributedDataParallel).parameters
    for name in options:
        if name in RESERVED:
            raise SettingsError(f"ddp.{name} is set by the launcher; leave it out")
        if name not in parameters:
            raise SettingsError(
                f"ddp.{name}: DistributedDataParallel takes no such argument{closest(name, parameters)}"
            )
    for name, layer in model.named_modules() if averages else ():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise SettingsError(
                f"model: layer {name} has sparse=true, with which DistributedDataParallel halves gradients of other "
                "layers (torch 2.14); set its sparse=false, or train on one device"
            )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that ``wrap`` was given."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _compile(model: nn.Module, backend: str, *, dynamic: bool | None) -> None:
    try:
        model.compile(backend=backend, dynamic=dynamic)
    except Exception as error:
        known = torch.compiler.list_backends()
        if backend in known:
            raise
        raise SettingsError(f"trainer.compile={backend} is no backend{closest(backend, known)}") from error
