"""Loaders: the rows that a sampler chose, as batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


def loader(
    dataset: Dataset[Any], batches: Sampler[list[int]], workers: int, device: torch.device, seed: int, keep: bool = True
) -> DataLoader[Any]:
    """A loader of the ``batches`` of ``dataset``.

    Args:
        dataset: rows by index; one with ``__getitems__`` is fetched a batch at a time, one with ``collate_fn``
            collates by itself.
        batches: lists of indices.
        workers: processes that read rows; 0: this process.
        device: where the rows go; page-locked memory is used for CUDA.
        seed: of the workers' random streams; the caller's stays untouched.
        keep: whether workers stay alive between passes.
    """
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=keep and workers > 0,
        pin_memory=device.type == "cuda",
        collate_fn=collate_of(dataset),
        generator=torch.Generator().manual_seed(seed),
    )


def reads_batches(dataset: Any) -> bool:
    """Whether a dataset gives whole batches, collated, rather than rows."""
    return hasattr(dataset, "__getitems__") and collate_of(dataset) is not None


def collate_of(dataset: Any) -> Callable[[Any], Any] | None:
    """How a dataset collates, or the one inside it, as inside a Subset; None: as torch does."""
    while not hasattr(dataset, "collate_fn") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return getattr(dataset, "collate_fn", None)
