"""What all contenders share: the rows, the model, the settings, and an optimizer with a clock in it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from launcher.data.digits import digits
from launcher.models.small_conv import SmallConvNet

SEED = 0
RANKS = 2
GLOBAL_SIZE = 128
STEPS_PER_EPOCH = 11
LOG_EVERY = 10
SGD = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005}
EPOCHS = int(os.environ.get("BENCHMARK_EPOCHS", "30"))
STEPS = EPOCHS * STEPS_PER_EPOCH
TIMES = os.environ.get("BENCHMARK_TIMES", "times.json")


class TimedSGD(torch.optim.SGD):
    """SGD that notes when each step was done; after the last, rank 0 leaves the times in a file."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.times: list[float] = []

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.times.append(time.time())
        if len(self.times) == STEPS and os.environ["RANK"] == "0":
            Path(TIMES).write_text(json.dumps(self.times), encoding="utf-8")
        return result


def training_rows() -> TensorDataset:
    """Images (rows, 1, 8, 8) and classes."""
    return TensorDataset(*digits().tensors)


def model_and_optimizer() -> tuple[nn.Module, TimedSGD]:
    """The same initial weights on every rank."""
    torch.manual_seed(SEED)
    model = SmallConvNet()
    return model, TimedSGD(model.parameters(), **SGD)


def cosine(optimizer: torch.optim.Optimizer, steps: int = STEPS) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate down to zero over the run."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
