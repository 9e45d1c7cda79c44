"""The gradient noise scale: from which batch size on more rows bring little.

McCandlish, Kaplan, Amodei and the OpenAI Dota Team, "An Empirical Model of Large-Batch Training", 2018
(arXiv:1812.06162). With G the gradient of the mean loss over all rows and S the covariance of the gradients of single
rows, the simple noise scale is tr(S) / |G|^2 rows: a step over so many rows has as much noise in it as gradient. With
batches far below it twice the rows are worth two steps, far above it hardly more than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from launcher.tune.words import about
from samplers.words import counted

ERRORS = 2.0
"""Standard errors that the band reaches to both sides, about 95 %."""
FEWEST = 4
"""Micro-batches below which a band means nothing."""


@dataclass(frozen=True)
class NoiseScale:
    """tr(S) / |G|^2, as micro-batches of equal size tell it.

    Attributes:
        rows: the noise scale; None: it is not known.
        low: lower end of its band, in rows; None: nothing is known.
        high: upper end; None: no bound is known.
        why_not: what keeps it from being known; None: it is.
        micro_batches: that were measured.
        micro_rows: rows of each.
    """

    rows: float | None
    low: float | None
    high: float | None
    why_not: str | None
    micro_batches: int
    micro_rows: int


def products(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """Scalar products of gradients with one another.

    Args:
        gradients: of each micro-batch, one tensor for each parameter, in the same order.

    Returns:
        (micro-batches, micro-batches) float64.
    """
    total = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for of_parameter in zip(*gradients, strict=True):
        flat = torch.stack([gradient.flatten() for gradient in of_parameter]).double()
        total += (flat @ flat.T).cpu()
    return total


def noise_scale(gradients: Sequence[Sequence[Tensor]], rows: int) -> NoiseScale:
    """The noise scale, from gradients at one point of the weights.

    Args:
        gradients: of the mean loss over each micro-batch, one tensor for each parameter, in the same order.
        rows: of each micro-batch; no row stands in two of them.
    """
    count = len(gradients)
    if count < FEWEST:
        return unknown(f"{count} micro-batches of {counted(rows, 'row')} are too few, {FEWEST} are needed", count, rows)
    return from_products(products(gradients), rows)


def from_products(between: Tensor, rows: int) -> NoiseScale:
    """The noise scale, from the scalar products of the gradients of micro-batches.

    Appendix A.1 of the paper gives |G|^2 and tr(S) without bias from the squared norms at two batch sizes; here these
    are a micro-batch, and all of them together. The band is a jackknife's: of |G|^2 / tr(S), which stays finite where
    the gradient drowns in noise.

    Args:
        between: (micro-batches, micro-batches), at least 4.
        rows: of each micro-batch.
    """
    count = len(between)
    signal, error = _jackknife(between, rows)
    if not math.isfinite(signal) or not math.isfinite(error):
        return unknown("the gradients are zero, the same in all micro-batches, or not finite", count, rows)
    low, high = signal - ERRORS * error, signal + ERRORS * error
    if low <= 0:
        least = f": more than {about(1 / high)} rows" if high > 0 else ""
        found = f"|G|^2 is not above its noise in {count} micro-batches of {counted(rows, 'row')}{least}"
        return unknown(found, count, rows, low=1 / high if high > 0 else None)
    return NoiseScale(1 / signal, 1 / high, 1 / low, None, count, rows)


def unknown(why_not: str, micro_batches: int, micro_rows: int, low: float | None = None) -> NoiseScale:
    """A noise scale that is not known, for a reason."""
    return NoiseScale(None, low, None, why_not, micro_batches, micro_rows)


def squared_gradient_and_variance(norm_sum: Tensor, sum_norm: Tensor, count: int, rows: int) -> tuple[Tensor, Tensor]:
    """Estimates without bias of |G|^2 and tr(S), as in appendix A.1.

    Args:
        norm_sum: the sum of the squared norms of the gradients of ``count`` micro-batches.
        sum_norm: the squared norm of the sum of these gradients.
        count: micro-batches.
        rows: of each.
    """
    small, large = norm_sum / count, sum_norm / count**2
    squared_gradient = (count * large - small) / (count - 1)
    return squared_gradient, (small - large) * rows * count / (count - 1)


def _jackknife(between: Tensor, rows: int) -> tuple[float, float]:
    """|G|^2 / tr(S), and its standard error from leaving out one micro-batch after the other."""
    count, norms, total = len(between), between.diagonal(), between.sum()
    gradient, variance = squared_gradient_and_variance(norms.sum(), total, count, rows)
    others = total - 2 * between.sum(1) + norms
    gradients, variances = squared_gradient_and_variance(norms.sum() - norms, others, count - 1, rows)
    without = gradients / variances
    error = ((count - 1) / count * (without - without.mean()).square().sum()).sqrt()
    return float(gradient / variance), float(error)
