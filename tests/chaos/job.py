"""The digits job as chaos sees it: its rows have numbers, and each rank tells of every step.

A step is told through a socket, which a disk without room does not close.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from launcher.data.digits import digits
from launcher.data.memory import InMemory
from launcher.training.task import Supervised

LEDGER, START = "CHAOS_LEDGER", "CHAOS_START"
"""Variables with the path of the socket and the number of the start."""
LARGEST = 1 << 18

rows_of_step: list[int] = []
"""The rows that this rank trained on since its last step."""


def numbered_digits(*, train: bool) -> InMemory:
    """The digits, as (image, class, number)."""
    images, classes = digits(train).tensors
    return InMemory(images, classes, torch.arange(len(images)))


class Numbered(Supervised):
    """As Supervised, for rows that have a number, which is noted in training."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        *pair, numbers = batch
        if model.training:
            rows_of_step.extend(numbers.tolist())
        return super().loss(model, pair)


class Telling(torch.optim.AdamW):
    """Counts its steps in what a checkpoint keeps of it, and tells of each which rows this rank gave to it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.param_groups[0]["steps"] = 0
        rows_of_step.clear()  # the launcher puts two rows through the model before it trains
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        self.param_groups[0]["steps"] += 1
        told = {
            "start": int(os.environ[START]),
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "rank": int(os.environ.get("RANK", "0")),
            "process": os.getpid(),
            "step": self.param_groups[0]["steps"],
            "rows": rows_of_step,
        }
        self.socket.sendto(json.dumps(told).encode(), os.environ[LEDGER])
        rows_of_step.clear()
        return super().step(closure)
