"""Loaders: the rows that a sampler chose, as batches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from launcher.processes.signals import held_back, ignore_signals, lives

LOOK_S = 1.0


class Loader(DataLoader[Any]):
    """A loader whose workers end with their rank, never before it: it may have to finish a step and a checkpoint.

    Attributes:
        alike: whether rows are computed with one thread in this process too, as workers do.
    """

    alike = False

    def __iter__(self) -> _BaseDataLoaderIter:
        """Start the workers; signals wait until these ignore them."""
        with held_back():
            batches = super().__iter__()
        return _with_one_thread(batches) if self.alike and self.num_workers == 0 else batches  # type: ignore[return-value]


def _with_one_thread(batches: Iterator[Any]) -> Iterator[Any]:
    threads, end = torch.get_num_threads(), object()
    while True:
        torch.set_num_threads(1)
        batch = next(batches, end)
        torch.set_num_threads(threads)
        if batch is end:
            return
        yield batch


def _begin_worker(rank: int, _number: int) -> None:
    ignore_signals()
    threading.Thread(target=_end_with, args=(rank,), daemon=True).start()


def _end_with(rank: int) -> None:
    """End this worker once its rank is gone, also where it is busy with a row."""
    while lives(rank):
        time.sleep(LOOK_S)
    os._exit(1)


def loader(  # noqa: PLR0913 - each is an option of its own
    dataset: Dataset[Any],
    batches: Sampler[list[int]],
    workers: int,
    device: torch.device,
    seed: int,
    *,
    keep: bool = True,
    alike: bool = False,
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
        alike: whether rows have the same bits for any number of workers, 0 included.
    """
    made = Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=keep and workers > 0,
        pin_memory=device.type == "cuda",
        collate_fn=collate_of(dataset),
        generator=torch.Generator().manual_seed(seed),
        worker_init_fn=partial(_begin_worker, os.getpid()),
    )
    made.alike = alike
    return made


def reads_batches(dataset: Any) -> bool:
    """Whether a dataset gives whole batches, collated, rather than rows."""
    return hasattr(dataset, "__getitems__") and collate_of(dataset) is not None


def collate_of(dataset: Any) -> Callable[[Any], Any] | None:
    """How a dataset collates, or the one inside it, as inside a Subset; None: as torch does.

    One that gives whole batches collates these, so what it says is of no use to a wrapper that reads it row by row.
    """
    inner, by_batches = dataset, True
    while not hasattr(inner, "collate_fn") and hasattr(inner, "dataset"):
        by_batches = by_batches and hasattr(inner, "__getitems__")
        inner = inner.dataset
    return getattr(inner, "collate_fn", None) if by_batches or not hasattr(inner, "__getitems__") else None
