"""What is learned: a task turns a model and a batch into one loss per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

PAIR = 2


@dataclass(frozen=True)
class Scores:
    """What one batch gives.

    Attributes:
        losses: (rows,) float, one loss per row.
        prediction: what the metrics get first, rows in its first dimension.
        target: what the metrics get second, rows in its first dimension.
    """

    losses: Tensor
    prediction: Any
    target: Any


class Task(Protocol):
    """How rows become losses.

    The loop weights the rows: a task never averages over rows and never looks at ranks.

    A task may have more methods:

    - ``after_step(model)`` is called after each step that moved the weights, without gradients, on every rank, with the
      model that is not wrapped: to follow the weights by a moving average, or to move a teacher.
    - ``state_dict()`` and ``load_state_dict(state)`` let a checkpoint keep what it has beside the model. The state is a
      mapping of tensors, numbers, texts, lists and mappings; that of rank 0 is kept, and every rank gets it back, with
      its tensors on the CPU. A loss may have both as well.
    """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss per row: (rows,) float, with the graph that backward needs."""
        ...

    def score(self, model: nn.Module, batch: Any) -> Scores:
        """The same for evaluation, with what the metrics compare."""
        ...


class Supervised:
    """Learn ``target`` from ``inputs``, for batches ``(inputs, target)``.

    Args:
        loss: (prediction, target) -> one value per row; further dimensions are averaged within the row.
    """

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        self._loss = loss

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss per row, (rows,)."""
        return self.score(model, batch).losses

    def score(self, model: nn.Module, batch: Any) -> Scores:
        """One loss per row, the model's prediction and the target."""
        if not isinstance(batch, tuple | list) or len(batch) != PAIR:
            raise ValueError(
                f"a batch of launcher.training.task.Supervised is (inputs, target), found {type(batch).__name__} of "
                f"{len(batch)}: let the dataset give pairs, or bring a task of your own"
            )
        inputs, target = batch
        prediction = model(inputs)
        losses = self._loss(prediction, target)
        if losses.ndim > 1 and isinstance(target, Tensor) and losses.shape != target.shape:
            raise ValueError(
                f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} give losses "
                f"{tuple(losses.shape)}: rows are mixed with one another; give prediction and target the same shape"
            )
        return Scores(losses.flatten(1).mean(1) if losses.ndim > 1 else losses, prediction, target)


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    """1 where the largest of (rows, classes) is the target class, else 0.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    return (prediction.argmax(1) == target).float()


class TopK:
    """1 where the target class is among the ``k`` largest of (rows, classes), else 0."""

    def __init__(self, k: int = 5) -> None:
        self.k = k

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """(rows,) float."""
        return (prediction.topk(self.k, 1).indices == target[:, None]).any(1).float()


def absolute_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of each row, (rows,)."""
    return (prediction - target).abs().flatten(1).mean(1) if prediction.ndim > 1 else (prediction - target).abs()
