"""A look at the first rows before training: do data, model, loss and metrics fit together?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from launcher.processes.errors import SettingsError, is_users_own
from launcher.training.evaluate import Metric, evaluating
from launcher.training.step import to_device
from launcher.training.task import Task

ROWS = 2


def check_rows(
    option: str,
    dataset: Dataset[Any],
    model: nn.Module,
    task: Task,
    metrics: Mapping[str, Metric],
    device: torch.device,
) -> None:
    """Put the first rows of ``dataset`` through ``model`` in evaluation mode, without gradients.

    Args:
        option: the setting that the dataset comes from, ``data.train`` or ``data.test``.
        dataset: at least one row.
        model: on ``device``; stays as it is.
        task: rows to losses.
        metrics: checked to give one value per row.
        device: where the rows go.

    Raises:
        SettingsError: where they do not fit. An exception of the user's own code passes unchanged.
    """
    batch, rows = first_rows(option, dataset)
    with torch.no_grad(), evaluating(model):
        try:
            scores = task.score(model, to_device(batch, device))
        except Exception as error:
            if is_users_own(error) and not isinstance(error, RuntimeError):
                raise
            raise SettingsError(
                f"model, loss and {option} do not fit together: {type(error).__name__}: {error} "
                f"(a batch is {shapes(batch)})"
            ) from error
        _check_shape("loss", scores.losses, rows, "; set loss.reduction=none or return one loss per row from the task")
        for name, metric in metrics.items():
            _check_shape(f"metrics.{name}", metric(scores.prediction, scores.target), rows)


def first_rows(option: str, dataset: Dataset[Any]) -> tuple[Any, int]:
    """The first rows of ``dataset`` as a batch, and how many they are.

    Raises:
        SettingsError: where a library cannot read or collate them.
    """
    rows = min(ROWS, len(dataset))  # type: ignore[arg-type]
    try:
        loader = DataLoader(dataset, batch_sampler=[list(range(rows))], collate_fn=getattr(dataset, "collate_fn", None))
        return next(iter(loader)), rows
    except Exception as error:
        if is_users_own(error):
            raise
        raise SettingsError(f"{option}: its rows make no batch: {type(error).__name__}: {error}") from error


def shapes(batch: Any) -> str:
    """The shapes in a batch, in the order of the batch."""
    if isinstance(batch, Tensor):
        return f"{tuple(batch.shape)} {str(batch.dtype).removeprefix('torch.')}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "[" + ", ".join(shapes(value) for value in batch) + "]"
    return type(batch).__name__


def _check_shape(option: str, values: Any, rows: int, remedy: str = "") -> None:
    shape = tuple(values.shape) if isinstance(values, Tensor) else None
    whole = shape == (rows,) if option == "loss" else shape is not None and shape[:1] == (rows,)
    if not whole:
        found = type(values).__name__ if shape is None else f"shape {shape}"
        raise SettingsError(f"{option} gives {found} for {rows} rows, one value per row is needed{remedy}")
