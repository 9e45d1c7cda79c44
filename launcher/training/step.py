"""One optimizer step: a share of the global batch, whatever the shares, gives the same gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from launcher.observe.clock import Clock
from launcher.training.compute import Compute
from launcher.training.finite import FiniteSteps
from launcher.training.reduction import Reduction
from launcher.training.task import Task
from launcher.training.wrap import unwrapped
from samplers import FixedGlobalBatchSampler, Share
from samplers.words import counted

MicroBatch = tuple[Any, Share]


class Stepped(NamedTuple):
    """What came of a step.

    Attributes:
        loss: this rank's part of the sum of the losses of all real rows, on the device.
        rows: how many real rows the global batch has, over all ranks.
        left_out: whether the gradient was not finite, and the optimizer did not step.
    """

    loss: Tensor
    rows: int
    left_out: bool


@dataclass(frozen=True)
class Stepper:
    """The parts that a step needs.

    Attributes:
        model: as the reduction wants it.
        task: rows to losses.
        optimizer: moves the weights.
        scheduler: moves the learning rate once per step; None: constant.
        compute: device and number format.
        reduction: joins the gradients of all ranks.
        clip_norm: largest norm of the gradient; None: no clipping.
        finite: lets the optimizer step where the gradient is finite; with float16, loss scaling sees to that.
        clock: is told which part of the step begins.
    """

    model: nn.Module
    task: Task
    optimizer: Optimizer
    scheduler: LRScheduler | None
    compute: Compute
    reduction: Reduction
    clip_norm: float | None = None
    finite: FiniteSteps = field(default_factory=FiniteSteps)
    clock: Clock = field(default_factory=Clock)

    def begin(self, step: int) -> None:
        """Get ready for a step, before its rows are read."""
        self.reduction.begin(step)

    def step(self, micro_batches: Iterable[MicroBatch]) -> Stepped:
        """Take one step over this rank's share.

        The gradient is that of the mean loss over the real rows of the global batch: summed losses, divided once by
        that number, which the plan knows, and multiplied by what the reduction divides by. Of this factor the backward
        sees the nearest power of two, which even 16 bits hold exactly; the gradients get the rest.
        """
        sums, global_rows, factor = [], 0, 1.0
        kept = self._statistics() if self.finite.skips or self.compute.scaler.is_enabled() else []
        for batch, share in micro_batches:
            with self.clock.part("forward_backward"), self.reduction.micro_batch(share) as note:
                loss = self._loss(batch, share)
                factor = self.reduction.divides_by / share.global_rows
                if share.last_in_step:
                    self.clock.after_backward(loss, "communication")
                # A loss that is not finite is to be seen in the gradient, which is what all ranks look at.
                self.compute.backward(loss * (power_of_two(factor) + 0 * loss.detach()))
                note(loss.detach())
            sums.append(loss.detach())
            global_rows = share.global_rows
        with self.clock.part("communication"):
            loss = self.reduction.finish()
        with self.clock.part("optimizer"):
            may_step = self._optimize(sums, factor, kept)
        return Stepped(loss, global_rows, left_out=not may_step)

    def _optimize(self, sums: Sequence[Tensor], factor: float, kept: Iterable[tuple[Tensor, Tensor]]) -> bool:
        """Move the weights, where the gradient is finite; returns whether it is, or loss scaling sees to that."""
        scale_gradients(self.model, factor / power_of_two(factor))
        may_step = self.compute.scaler.is_enabled() or self.finite.allow(self.model, sums)
        taken = may_step and self.compute.step(self.optimizer, self.model, self.clip_norm)
        if self.compute.scaler.is_enabled():
            self.finite.scaled(taken)
        if taken:
            self._move_on()
        else:
            put_back(kept)
        self.optimizer.zero_grad()
        return may_step

    def _move_on(self) -> None:
        """The weights have moved: so does the rate, and what follows the weights."""
        if self.scheduler is not None:
            self.scheduler.step()
        if hasattr(self.task, "after_step"):
            with torch.no_grad():
                self.task.after_step(unwrapped(self.model))

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _statistics(self) -> list[tuple[Tensor, Tensor]]:
        """The buffers of normalisation layers and their values, which a step that is left out must not move."""
        layers = [layer for layer in self.model.modules() if isinstance(layer, _NormBase)]
        return [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers(recurse=False)]

    def _loss(self, batch: Any, share: Share) -> Tensor:
        """The sum over the real rows of a micro-batch, in float32 at least: 16 bits would round the weight of a row."""
        with self.clock.part("to_device"):
            rows = self.compute.rows(batch)
        with self.compute.autocast():
            losses = self.task.loss(self.model, rows)
        if losses.shape != (share.rows,):
            raise ValueError(
                f"the task gives losses of shape {tuple(losses.shape)} for a micro-batch of "
                f"{counted(share.rows, 'row')}: one loss per row is needed, and collating must not leave rows out"
            )
        return losses[: share.real_rows].to(torch.promote_types(losses.dtype, torch.float32)).sum()


@torch.no_grad()
def put_back(kept: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give tensors the values that were kept of them."""
    for tensor, value in kept:
        tensor.copy_(value)


def power_of_two(value: float) -> float:
    """The power of two nearest to a positive ``value``.

    >>> power_of_two(3 / 100)
    0.03125
    """
    return 2.0 ** round(math.log2(value))


def scale_gradients(model: nn.Module, factor: float) -> None:
    """Multiply all gradients by ``factor``, in place."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients or factor == 1:
        return
    if gradients[0].is_cpu:  # where _foreach_mul_ saves nothing, and rounds the factor to 16 bits for gradients of 16
        for gradient in gradients:
            gradient.mul_(factor)
    else:
        torch._foreach_mul_(gradients, factor)


def by_step(batches: Iterable[Any], sampler: FixedGlobalBatchSampler) -> Iterator[Iterator[MicroBatch]]:
    """The micro-batches of one pass with their shares, in one iterator for each step, which is to be used up.

    Each is read when it is asked for: what rows draw belongs to the random streams of their own step.
    """
    with_shares = ((batch, sampler.share(number)) for number, batch in enumerate(batches))
    for first in with_shares:
        yield _one_step(first, with_shares)


def _one_step(micro_batch: MicroBatch, others: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    yield micro_batch
    while not micro_batch[1].last_in_step:
        micro_batch = next(others)
        yield micro_batch
