"""Number formats: float32, or autocast to bfloat16 or float16, the latter with loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """How a step computes.

    Attributes:
        device_type: ``cpu`` or ``cuda``.
        dtype: what autocast computes in; None for float32 throughout.
        scaler: loss scaling; does nothing unless the format is float16.
    """

    device_type: str
    dtype: torch.dtype | None
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, name: str, device_type: str) -> Precision:
        """The precision of ``trainer.precision`` on a type of device."""
        return cls(device_type, DTYPES.get(name), torch.amp.GradScaler(device_type, enabled=name == "fp16"))

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the forward runs."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device_type, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss."""
        (self.scaler.scale(loss) if self.scaler.is_enabled() else loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, model: nn.Module, clip_norm: float | None) -> bool:
        """Clip, then step. False where float16 overflowed and the step was left out; every rank decides alike."""
        if clip_norm is not None:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        if not self.scaler.is_enabled():
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before
