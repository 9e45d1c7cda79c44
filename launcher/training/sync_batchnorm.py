"""BatchNorm over the rows of all ranks, on devices for which torch has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from launcher.training.converted import ConvertedBatchNorm
from samplers.words import counted


class CudaSyncBatchNorm(ConvertedBatchNorm, nn.SyncBatchNorm):
    """torch's SyncBatchNorm over the default group."""

    process_group = None


class SyncBatchNorm(ConvertedBatchNorm):
    """BatchNorm that in training takes its statistics over the rows of all ranks, however many each of them has.

    Outputs, gradients and running statistics are those of one process with all the rows; every rank has the same
    statistics, and of the gradient of weight and bias its own part of the sum. A collective of all ranks, in the
    forward and in the backward. One rank computes in the same way, not as torch's kernel does: where values are
    equal but for rounding, as on the even background of images, max-pooling would make more of the difference. In
    evaluation mode, plain BatchNorm.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that callers of BatchNorm know
        """Normalise ``input`` (rows, channels, ...).

        Raises:
            ValueError: on every rank, where all ranks together have one value per channel.
        """
        group = getattr(self, "process_group", None)
        if not self.training:
            return _BatchNorm.forward(self, input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        found, momentum = statistics_over_ranks(input.detach(), group), self.next_momentum()
        for buffer, value in zip(self.tracked(), (found.mean, found.unbiased_variance), strict=False):
            buffer.lerp_(value.to(buffer.dtype), momentum)
        normal: Tensor = _Normalise.apply(input, self.weight, self.bias, found, self.eps, group)
        return normal


@dataclass(frozen=True)
class Statistics:
    """Of each channel, over all ranks.

    Attributes:
        mean: (channels,), float64.
        squares: sum of the squared deviations from the mean: (channels,), float64.
        count: values of each channel.
    """

    mean: Tensor
    squares: Tensor
    count: float

    @property
    def variance(self) -> Tensor:
        """The mean squared deviation, which normalises."""
        return self.squares / self.count

    @property
    def unbiased_variance(self) -> Tensor:
        """The estimate for values that were not seen, which the running variance follows."""
        return self.squares / (self.count - 1)


def statistics_over_ranks(rows: Tensor, group: dist.ProcessGroup | None = None) -> Statistics:
    """Combine every rank's count, mean and squared deviations from it; a collective, bitwise equal on all ranks.

    Each rank subtracts its own mean before it squares, and means are combined by count (Chan, Golub and LeVeque 1979):
    a mean far from zero costs no digits.

    Args:
        rows: (rows, channels, ...) of this rank, any number of rows; 16 bits are summed in float32.
        group: None: the default group.

    Raises:
        ValueError: where there is one value per channel.
    """
    channels, wide, others = rows.shape[1], _wide(rows), _all_but_channels(rows)
    count = rows.numel() // channels
    mean = wide.sum(others) / max(count, 1)
    squares = (wide - _per_channel(mean, rows)).square_().sum(others)
    mine = torch.cat([mean.new_tensor([count]), mean, squares]).double()
    everyone = [mine]
    if dist.is_initialized():
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, mine, group=group)
    counts, means, all_squares = torch.split(torch.stack(everyone), [1, channels, channels], dim=1)
    total = float(counts.sum())
    if total <= 1:
        raise ValueError(
            f"{counted(int(total), 'value')} per channel on all ranks together: training BatchNorm needs more than 1"
        )
    common = (counts * means).sum(0) / total
    return Statistics(common, (all_squares + counts * (means - common).square()).sum(0), total)


class _Normalise(Function):
    """Normalise with statistics that depend on all ranks' rows, in the backward too."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - what BatchNorm is made of
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        found: Statistics,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        wide = _wide(rows)
        mean, scale = found.mean.to(wide.dtype), (found.variance + eps).rsqrt().to(wide.dtype)
        ctx.save_for_backward(rows, weight, mean, scale)
        ctx.count, ctx.group = found.count, group
        normal = (wide - _per_channel(mean, rows)).mul_(_per_channel(_times(scale, weight), rows))
        if bias is not None:
            normal += _per_channel(bias, rows)
        return normal.to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, mean, scale = ctx.saved_tensors
        wide, others = _wide(gradient), _all_but_channels(rows)
        normal = (_wide(rows) - _per_channel(mean, rows)).mul_(_per_channel(scale, rows))
        sums = torch.stack([wide.sum(others), (wide * normal).sum(others)])
        of_rows = None
        if ctx.needs_input_grad[0]:
            means = sums.clone()
            if dist.is_initialized():
                dist.all_reduce(means, group=ctx.group)
            means /= ctx.count
            of_rows = wide - _per_channel(means[0], rows) - normal.mul_(_per_channel(means[1], rows))
            of_rows = of_rows.mul_(_per_channel(_times(scale, weight), rows)).to(rows.dtype)
        of_bias, of_weight = sums.unbind()
        _, weighted, biased, *_ = ctx.needs_input_grad
        return of_rows, of_weight if weighted else None, of_bias if biased else None, None, None, None


def _wide(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _all_but_channels(rows: Tensor) -> list[int]:
    return [0, *range(2, rows.ndim)]


def _per_channel(values: Tensor, rows: Tensor) -> Tensor:
    """(channels,) such that it broadcasts to ``rows``."""
    return values.view(-1, *[1] * (rows.ndim - 2))


def _times(scale: Tensor, weight: Tensor | None) -> Tensor:
    return scale if weight is None else scale * weight
