"""How many values BatchNorm takes its statistics over, where it has the fewest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from launcher.training.evaluate import evaluating

FEW = 32
"""Values below which the variance that a layer divides by is off by 25 % and more."""


@dataclass(frozen=True)
class SmallestMap:
    """The BatchNorm layer with the fewest values for each channel.

    Attributes:
        layer: its name in the model.
        values_per_row: what a row adds to each channel: height times width of its map.
        rows: that statistics are taken over at least, as ``batchnorm`` says.
    """

    layer: str
    values_per_row: float
    rows: int

    @property
    def values(self) -> int:
        """For each channel."""
        return int(self.values_per_row * self.rows)

    @property
    def error(self) -> float:
        """Standard deviation of the variance of so many normal values, as a part of it."""
        return math.sqrt(2 / (self.values - 1)) if self.values > 1 else math.inf

    @property
    def few(self) -> bool:
        """Whether these are too few to rely on."""
        return self.values < FEW


def values_per_row(model: nn.Module, forward: Callable[[], Any], rows: int) -> tuple[str, float] | None:
    """The BatchNorm layer that gets the fewest values per channel, and how many for each row.

    Args:
        model: the layers are looked for in it; it is evaluated, so that no statistics move.
        forward: sends a micro-batch of real rows through the model.
        rows: of the micro-batch.

    Returns:
        Name and values; None where no BatchNorm layer takes part.
    """
    found: dict[str, float] = {}
    with _noting(model, found), evaluating(model), torch.no_grad():
        forward()
    if not found:
        return None
    layer = min(found, key=found.__getitem__)
    return layer, found[layer] / rows


@contextmanager
def _noting(model: nn.Module, found: dict[str, float]) -> Iterator[None]:
    """Note for each layer the fewest values per channel that it gets."""

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            channels = given[0].shape[1]
            found[name] = min(found.get(name, math.inf), given[0].numel() / channels)

        return note

    layers = [(name or "model", layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    handles = [layer.register_forward_pre_hook(noting(name)) for name, layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
