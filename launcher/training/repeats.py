"""A look before exact training: does the model give the same for the same rows, or does it keep a state of its own?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from launcher.processes.errors import SettingsError
from launcher.seeds import seed_streams
from launcher.training.check import fingerprint, first_rows
from launcher.training.compute import Compute
from launcher.training.task import Task

Trace = list[tuple[str, bytes]]


class Kept(NamedTuple):
    """A parameter or buffer of a module, with its value."""

    tensors: dict[str, Any]
    key: str
    tensor: Tensor | None
    value: Tensor | None

    def put_back(self) -> None:
        """Put the tensor back in its place, and the value into it."""
        self.tensors[self.key] = self.tensor
        if self.tensor is not None and self.value is not None:
            self.tensor.detach().copy_(self.value)


def check_repeats(dataset: Dataset[Any], model: nn.Module, task: Task, compute: Compute, seed: int) -> None:
    """Put the first rows twice through copies of model and task, as in training, with the same random streams.

    Parameters and buffers are the same both times, as for two shards of a step. What cannot be copied, or does not work
    with so few rows, is not looked at.

    Args:
        dataset: ``data.train``.
        model: on the device; stays as it is.
        task: stays as it is.
        compute: device and number format.
        seed: of the run.

    Raises:
        SettingsError: where they give something else the second time, naming the layer where that begins.
    """
    batch = compute.rows(first_rows("data.train", dataset)[0])
    try:
        twin, task = deepcopy((model, task))
        twin.train()
        kept = list(_kept(twin))
        first = _trace(twin, task, batch, compute, seed)
        for each in kept:
            each.put_back()
        second = _trace(twin, task, batch, compute, seed)
    except Exception:  # noqa: BLE001 - it is training that tells what is wrong with the user's code
        return
    for (name, values), again in zip(first, second, strict=False):
        if (name, values) != again:
            raise SettingsError(
                f"batch.exact=true: {name} is another when the same rows are put through again, so that it would "
                "depend on how many shards a device computes: something keeps a state outside of parameters and buffers"
                ", such as a generator or a counter of its own; draw from torch's global stream, which is seeded for "
                "each shard, register what moves as a buffer, or set batch.exact=false"
            )


@torch.no_grad()
def _trace(model: nn.Module, task: Task, batch: Any, compute: Compute, seed: int) -> Trace:
    """What all layers give in the order in which they are done, then the losses, then the buffers."""
    trace: Trace = []
    seed_streams(seed, "check")
    with _telling(model, trace), compute.autocast():
        losses = task.loss(model, batch)
    buffers = [(f"buffer {name}", fingerprint(buffer)) for name, buffer in model.named_buffers()]
    return [*trace, ("the loss", fingerprint(losses)), *buffers]


@contextmanager
def _telling(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Let every layer add its name and its output to ``trace``."""

    def tells(name: str) -> Any:
        return lambda layer, _, output: trace.append((_in_words(name, layer), fingerprint(output)))

    hooks = [layer.register_forward_hook(tells(name)) for name, layer in model.named_modules()]
    yield
    for hook in hooks:
        hook.remove()


def _in_words(name: str, layer: nn.Module) -> str:
    return f"the output of {f'layer {name}' if name else 'the model'} ({type(layer).__name__})"


def _kept(model: nn.Module) -> Iterator[Kept]:
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - the public iterators give no places
            for key, tensor in tensors.items():
                yield Kept(tensors, key, tensor, None if tensor is None else tensor.detach().clone())
