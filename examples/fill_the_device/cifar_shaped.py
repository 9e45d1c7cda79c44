"""Rows of the shape of CIFAR-10, made up: what they cost is that of the real ones."""

from __future__ import annotations

import torch

from launcher.data.memory import InMemory


def cifar_shaped(rows: int, size: int = 32, seed: int = 0) -> InMemory:
    """Images (3, size, size) float32 of noise around a colour for each of the classes 0 .. 9."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (rows,), generator=generator)
    colours = torch.randn(10, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    return InMemory(torch.randn(rows, 3, size, size, generator=generator) + colours[classes], classes)
