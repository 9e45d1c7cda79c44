"""One optimizer step: a share of the global batch, whatever the shares, gives the same gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from launcher.training.precision import Precision
from launcher.training.task import Task
from samplers import FixedGlobalBatchSampler, Share

MicroBatch = tuple[Any, Share]


@dataclass(frozen=True)
class Stepper:
    """The parts that a step needs.

    Attributes:
        model: wrapped in DistributedDataParallel where there are several ranks.
        task: rows to losses.
        optimizer: moves the weights.
        scheduler: moves the learning rate once per step; None: constant.
        precision: the number format.
        device: where the rows go.
        world_size: ranks that DistributedDataParallel averages over.
        clip_norm: largest norm of the gradient; None: no clipping.
        channels_last: memory order of rows with four dimensions.
    """

    model: nn.Module
    task: Task
    optimizer: Optimizer
    scheduler: LRScheduler | None
    precision: Precision
    device: torch.device
    world_size: int = 1
    clip_norm: float | None = None
    channels_last: bool = False

    def step(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        """Take one step over this rank's share; the sum of its real rows' losses, on the device.

        The gradient is that of the mean loss over the real rows of the global batch: each row's loss is divided by
        that number, which the plan knows, and multiplied by the world size, which DistributedDataParallel divides by.
        """
        sums = []
        for batch, share in micro_batches:
            with self._synchronised(share.last_in_step):
                with self.precision.autocast():
                    losses = self.task.loss(self.model, to_device(batch, self.device, self.channels_last))
                    loss = losses[: share.real_rows].sum()
                self.precision.backward(loss * (self.world_size / share.global_rows))
            sums.append(loss.detach())
        if self.precision.step(self.optimizer, self.model, self.clip_norm) and self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return torch.stack(sums).sum()

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are reduced over the ranks in the backward of the last micro-batch alone."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


def to_device(batch: Any, device: torch.device, channels_last: bool = False) -> Any:
    """Move the tensors of a batch, which may be a tensor or nested in tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        order = torch.channels_last if channels_last and batch.ndim == 4 else torch.preserve_format  # noqa: PLR2004 - N, C, H, W
        return batch.to(device, non_blocking=True, memory_format=order)
    if isinstance(batch, dict):
        return {key: to_device(value, device, channels_last) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device, channels_last) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def by_step(batches: Iterable[Any], sampler: FixedGlobalBatchSampler) -> Iterator[list[MicroBatch]]:
    """The micro-batches of one pass with their shares, a list for each step."""
    step: list[MicroBatch] = []
    for number, batch in enumerate(batches):
        share = sampler.share(number)
        step.append((batch, share))
        if share.last_in_step:
            yield step
            step = []
