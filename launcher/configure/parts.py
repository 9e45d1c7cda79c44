"""The objects of a run, built from its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import Dataset

from launcher.checkpoints.stateful import Stateful, UnsavedBuffers, stateful
from launcher.configure.build import accepts, build, build_function
from launcher.configure.schema import Node, RunConfig
from launcher.processes.errors import SettingsError
from launcher.seeds import seed_streams
from launcher.training.evaluate import Metric
from launcher.training.task import Task
from samplers import Order, Shuffled

IMAGES = 4
"""Dimensions of a batch of images, and of the weights of a convolution over them."""

RUN_LENGTH = ("total_steps", "T_max", "total_iters")


@dataclass(frozen=True)
class Parts:
    """What a run is about.

    Attributes:
        model: on its device, not wrapped.
        task: rows to losses.
        loss: what the task was given; None where it takes none.
        metrics: by name.
        train: rows to train on; None where nothing is trained.
        test: rows to evaluate on; None where nothing is evaluated.
    """

    model: nn.Module
    task: Task
    loss: Callable[..., Any] | None
    metrics: Mapping[str, Metric]
    train: Dataset[Any] | None
    test: Dataset[Any] | None

    @property
    def stateful(self) -> dict[str, Stateful]:
        """What has a state that moves in training beside weights and optimizer, by name.

        Raises:
            SettingsError: where it gives its state and cannot take it back, or the other way round.
        """
        return stateful(task=self.task, loss=self.loss, buffers=UnsavedBuffers(self.model))


def build_parts(run: RunConfig, device: torch.device) -> Parts:
    """Everything but optimizer and scheduler; the model has the same initial weights on every rank.

    Raises:
        SettingsError: where a node cannot be built or gives something of another kind.
    """
    train = build_dataset(run, "train") if run.mode == "train" else None
    test = build_dataset(run, "test")
    metrics = {name: build_function(f"metrics.{name}", node) for name, node in run.metrics.items()}
    model, loss = _build_model(run, device), _build_loss(run, device)
    return Parts(model, _build_task(run, device, model, loss), loss, metrics, train, test)


def build_dataset(run: RunConfig, split: str) -> Dataset[Any] | None:
    """The dataset of ``data.train`` or ``data.test``; None where the node is empty.

    Raises:
        SettingsError: where it has no length, or no rows.
    """
    node: Node | None = getattr(run.data, split)
    if not node:
        return None
    seed_streams(run.seed, "data")  # the same for both splits, so that a random split fits together
    dataset = build(f"data.{split}", node)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise SettingsError(
            f"data.{split}: {node['_target_']} gives {type(dataset).__name__}, which has no length or no index"
        )
    if len(dataset) == 0:
        raise SettingsError(f"data.{split}: {node['_target_']} has no rows")
    return dataset  # type: ignore[no-any-return]


def build_order(run: RunConfig, rows: Dataset[Any]) -> Order:
    """The order of ``rows`` in an epoch: that of ``data.order``, or a shuffle by ``seed``.

    Raises:
        SettingsError: where ``data.order`` gives no order, or one of another number of rows.
    """
    n = len(rows)  # type: ignore[arg-type]
    if not run.data.order:
        return Shuffled(n, seed=run.seed)
    known = {"n": n, "seed": run.seed, "dataset": rows}
    missing = {name: v for name, v in known.items() if accepts("data.order", run.data.order, name)}
    order = build("data.order", run.data.order, **{k: v for k, v in missing.items() if k not in run.data.order})
    if not isinstance(order, Order):
        raise SettingsError(f"data.order: {run.data.order['_target_']} gives {type(order).__name__}, not an order")
    return order


def build_optimizer(run: RunConfig, model: nn.Module) -> Optimizer:
    """The optimizer over the parameters that learn."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise SettingsError(f"model: {run.model['_target_']} has no parameters that learn")
    optimizer = build("optimizer", run.optimizer, parameters)
    if not isinstance(optimizer, Optimizer):
        raise SettingsError(
            f"optimizer: {run.optimizer['_target_']} gives {type(optimizer).__name__}, not a torch.optim.Optimizer"
        )
    if inspect.signature(optimizer.step).parameters["closure"].default is inspect.Parameter.empty:
        raise SettingsError(
            f"optimizer: {run.optimizer['_target_']} asks for the loss again and again within a step; not supported"
        )
    return optimizer


def scheduler_node(run: RunConfig, steps: int) -> Node:
    """The node of the scheduler, in which null for its length has become the ``steps`` of the run."""
    length = {name: steps for name in RUN_LENGTH if name in run.scheduler and run.scheduler[name] is None}
    return {**run.scheduler, **length}


def build_scheduler(run: RunConfig, optimizer: Optimizer, steps: int) -> LRScheduler | None:
    """The scheduler, stepped once per step; null for its length becomes the ``steps`` of the run."""
    if not run.scheduler:
        return None
    scheduler = build("scheduler", scheduler_node(run, steps), optimizer)
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise SettingsError(
            f"scheduler: {run.scheduler['_target_']} gives {type(scheduler).__name__}, which is not stepped "
            "once per step without a metric; choose another of torch.optim.lr_scheduler"
        )
    return scheduler


def _build_model(run: RunConfig, device: torch.device) -> nn.Module:
    seed_streams(run.seed, "weights")
    model = build("model", run.model)
    if not isinstance(model, nn.Module):
        raise SettingsError(f"model: {run.model['_target_']} gives {type(model).__name__}, not a torch.nn.Module")
    model = model.to(device)
    if channels_last(run, device):
        for weight in (p for p in model.parameters() if p.ndim == IMAGES):
            # Copied rather than asked for: where a dimension is 1 the old strides would do, but gradients get the new.
            weight.data = torch.empty_like(weight.data, memory_format=torch.channels_last).copy_(weight.data)
    return model


def channels_last(run: RunConfig, device: torch.device) -> bool:
    """Whether images lie in channels-last order: as ``trainer.channels_last`` says, or where it pays."""
    if run.trainer.channels_last is None:
        return device.type == "cpu" or run.trainer.precision != "fp32"
    return run.trainer.channels_last


def _build_loss(run: RunConfig, device: torch.device) -> Callable[..., Any] | None:
    """The loss, per row; None where the task takes none."""
    if not accepts("task", run.task, "loss"):
        return None
    node = dict(run.loss)
    if accepts("loss", node, "reduction") and node.setdefault("reduction", "none") != "none":
        raise SettingsError(
            f"loss.reduction={node['reduction']}: the loop weights the rows itself; set loss.reduction=none"
        )
    loss = build_function("loss", node)
    if isinstance(loss, nn.Module):
        if any(p.requires_grad for p in loss.parameters()):
            raise SettingsError(
                f"loss: {node['_target_']} has parameters, which do not learn there; put them in the model"
            )
        loss = loss.to(device)
    return loss


def _build_task(run: RunConfig, device: torch.device, model: nn.Module, loss: Callable[..., Any] | None) -> Task:
    """The task; it gets the loss, and the model where it asks for one and its settings give none."""
    given = {} if loss is None else {"loss": loss}
    if "model" not in run.task and accepts("task", run.task, "model"):
        given["model"] = model
    task: Task = build("task", run.task, **given)
    if isinstance(task, nn.Module):
        task.to(device)
    return task
