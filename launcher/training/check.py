"""A look at the first rows before training: do data, model, loss and metrics fit together?"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from launcher.checkpoints.identity import changes
from launcher.data.loaders import collate_of
from launcher.processes.errors import SettingsError
from launcher.processes.origin import is_users_own, users_place
from launcher.seeds import seed_streams
from launcher.training.compute import Compute, is_undetermined
from launcher.training.evaluate import Metric, evaluating
from launcher.training.task import Task
from samplers import SeededRows
from samplers.words import counted

ROWS = 2
PER_ROW = "set loss.reduction=none or return one loss per row from the task"


def same_everywhere(rows: Mapping[str, int]) -> None:
    """Compare the numbers of rows, by setting, of all ranks; a collective.

    Raises:
        SettingsError: on every rank, where they differ, with both sides.
    """
    if not dist.is_initialized():
        return
    everyone: list[dict[str, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(rows))
    for rank, theirs in enumerate(everyone):
        for option, count in everyone[0].items():
            if theirs[option] != count:
                raise SettingsError(
                    f"{option} has {counted(count, 'row')} on rank 0 and {theirs[option]} on rank {rank}: give all the "
                    "same rows, the sampler deals them"
                )


def check_training_rows(dataset: Dataset[Any], model: nn.Module, task: Task, compute: Compute) -> None:
    """Ask ``task`` for the losses of the first rows of ``data.train``, in evaluation mode and without gradients.

    Args:
        dataset: at least one row.
        model: on the device; stays as it is.
        task: must give one loss per row.
        compute: device and number format.

    Raises:
        SettingsError: where they do not fit. An exception of the user's own code passes unchanged.
    """
    batch, rows = first_rows("data.train", dataset)
    with _fitting("data.train", batch, model), compute.autocast():
        losses = task.loss(model, compute.rows(batch))
    _one_per_row("loss", losses, rows, PER_ROW)


def check_test_rows(
    dataset: Dataset[Any], model: nn.Module, task: Task, metrics: Mapping[str, Metric], compute: Compute
) -> None:
    """Ask ``task`` and ``metrics`` for the scores of the first rows of ``data.test``; as ``check_training_rows``."""
    batch, rows = first_rows("data.test", dataset)
    with _fitting("data.test", batch, model), compute.autocast():
        scores = task.score(model, compute.rows(batch))
        values = {name: metric(scores.prediction, scores.target) for name, metric in metrics.items()}
    _one_per_row("loss", scores.losses, rows, PER_ROW)
    for name, value in values.items():
        sums_up = hasattr(metrics[name], "result")
        if not isinstance(value, Tensor) or value.shape[:1] != (rows,) or (value.ndim > 1 and not sums_up):
            raise SettingsError(
                f"metrics.{name} gives {shapes(value)} for {counted(rows, 'row')}, one value per row is needed"
            )


def check_same_rows(option: str, dataset: Dataset[Any], seed: int) -> None:
    """Read the first rows twice, as training reads them, with the same random streams.

    Args:
        option: ``data.train`` or ``data.test``.
        dataset: as the loader gets it.
        seed: of the run.

    Raises:
        SettingsError: where that draws from random streams that depend on who reads which rows, or gives other rows.
    """
    if isinstance(dataset, SeededRows):
        dataset.set_epoch(0)
    seed_streams(seed, "check")
    before = _streams()
    first = fingerprint(first_rows(option, dataset)[0])
    if _streams() != before:
        raise SettingsError(
            f"batch.exact=true: {option} draws random numbers that depend on who reads which rows, in collate_fn or "
            "where it reads several rows at once; draw in __getitem__, where each row has random streams of its own"
        )
    if fingerprint(first_rows(option, dataset)[0]) != first:
        raise SettingsError(
            f"batch.exact=true: {option} gives other rows when it is read again: with a generator of its own, or a "
            "state; draw from the global streams of python, numpy or torch, which are seeded for each row"
        )


def fingerprint(batch: Any) -> bytes:
    """The bytes of all that is in a batch, in the order of the batch."""
    if isinstance(batch, Tensor):
        return (
            fingerprint(batch.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()) if batch.numel() else b""
        )
    if isinstance(batch, np.ndarray) and batch.dtype != object:
        return batch.tobytes()
    if isinstance(batch, Mapping):
        return b"".join(repr(key).encode() + fingerprint(value) for key, value in batch.items())
    if isinstance(batch, list | tuple):
        return b"".join(map(fingerprint, batch))
    return pickle.dumps(batch) if _is_plain(batch) else b""


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic)


def _streams() -> tuple[str, str, bytes]:
    numpy = np.random.get_state()  # noqa: NPY002 - the stream that datasets of others draw from
    return repr(random.getstate()), repr(numpy), torch.get_rng_state().numpy().tobytes()


def same_identity(identity: Mapping[str, Any]) -> None:
    """Compare what bits depend on over all ranks; a collective.

    Raises:
        SettingsError: on every rank, where it differs, with both sides.
    """
    if not dist.is_initialized():
        return
    everyone: list[Mapping[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(identity))
    for rank, theirs in enumerate(everyone):
        if differences := changes(everyone[0], theirs):
            raise SettingsError(
                f"batch.exact=true: the bits would depend on which rank computes what: rank {rank} differs from rank 0 "
                f"in {differences}; use machines and settings that are alike, or set batch.exact=false"
            )


@contextmanager
def _fitting(option: str, batch: Any, model: nn.Module) -> Iterator[None]:
    try:
        with torch.no_grad(), evaluating(model):
            yield
    except Exception as error:
        if is_users_own(error) or is_undetermined(error):
            raise
        raise SettingsError(
            f"model, loss and {option} do not fit together: {type(error).__name__}: {error}"
            f"{users_place(error)}; a batch is {shapes(batch)}"
        ) from error


def first_rows(option: str, dataset: Dataset[Any]) -> tuple[Any, int]:
    """The first rows of ``dataset`` as a batch, and how many they are.

    Raises:
        SettingsError: where a library cannot read or collate them.
    """
    rows = min(ROWS, len(dataset))  # type: ignore[arg-type]
    try:
        loader = DataLoader(
            dataset,
            batch_sampler=[list(range(rows))],
            collate_fn=collate_of(dataset),
            generator=torch.Generator(),  # the loader's own draw is not the dataset's
        )
        return next(iter(loader)), rows
    except Exception as error:
        if is_users_own(error):
            raise
        raise SettingsError(
            f"{option}: its rows make no batch: {type(error).__name__}: {error}{users_place(error)}"
        ) from error


def shapes(batch: Any) -> str:
    """The shapes in a batch, in the order of the batch."""
    if isinstance(batch, Tensor):
        return f"{tuple(batch.shape)} {str(batch.dtype).removeprefix('torch.')}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "[" + ", ".join(shapes(value) for value in batch) + "]"
    return type(batch).__name__


def _one_per_row(option: str, values: Any, rows: int, remedy: str) -> None:
    if not isinstance(values, Tensor) or values.shape != (rows,):
        raise SettingsError(
            f"{option} gives {shapes(values)} for {counted(rows, 'row')}, one value per row is needed; {remedy}"
        )
