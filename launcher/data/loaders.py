"""Loaders: the rows that a sampler chose, as batches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from launcher.processes.signals import held_back, ignore_signals, lives

LOOK_S = 1.0


class Loader(DataLoader[Any]):
    """A loader whose workers end with their rank, never before it: it may have to finish a step and a checkpoint."""

    def __iter__(self) -> _BaseDataLoaderIter:
        """Start the workers; signals wait until these ignore them."""
        with held_back():
            return super().__iter__()


def _begin_worker(rank: int, _number: int) -> None:
    ignore_signals()
    threading.Thread(target=_end_with, args=(rank,), daemon=True).start()


def _end_with(rank: int) -> None:
    """End this worker once its rank is gone, also where it is busy with a row."""
    while lives(rank):
        time.sleep(LOOK_S)
    os._exit(1)


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
    return Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=keep and workers > 0,
        pin_memory=device.type == "cuda",
        collate_fn=collate_of(dataset),
        generator=torch.Generator().manual_seed(seed),
        worker_init_fn=partial(_begin_worker, os.getpid()),
    )


def reads_batches(dataset: Any) -> bool:
    """Whether a dataset gives whole batches, collated, rather than rows."""
    return hasattr(dataset, "__getitems__") and collate_of(dataset) is not None


def collate_of(dataset: Any) -> Callable[[Any], Any] | None:
    """How a dataset collates, or the one inside it, as inside a Subset; None: as torch does."""
    while not hasattr(dataset, "collate_fn") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return getattr(dataset, "collate_fn", None)
