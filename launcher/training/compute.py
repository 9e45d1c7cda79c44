"""How a rank computes: its device, and float32 or autocast to bfloat16 or float16, the latter with loss scaling."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from launcher.processes.errors import SettingsError
from launcher.processes.origin import users_place

log = logging.getLogger(__name__)

UNDETERMINED = "does not have a deterministic implementation"
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_CUBLAS = (":4096:8", ":16:8")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """How a rank computes.

    Attributes:
        device: where rows and model are.
        dtype: what autocast computes in; None for float32 throughout.
        scaler: loss scaling; does nothing unless the format is float16.
        channels_last: memory order of rows with four dimensions.
    """

    device: torch.device
    dtype: torch.dtype | None
    scaler: torch.amp.GradScaler
    channels_last: bool = False

    @classmethod
    def of(cls, precision: str, device: torch.device, channels_last: bool = False) -> Compute:
        """With the number format of ``trainer.precision``."""
        scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        return cls(device, DTYPES.get(precision), scaler, channels_last)

    def rows(self, batch: Any) -> Any:
        """The batch on the device."""
        return to_device(batch, self.device, self.channels_last)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the forward runs."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)

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
        # A fused optimizer would leave the step out by itself, but SGD then takes its first momentum from memory that
        # nobody wrote; this way the scaler does not call it at all.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other
        self.scaler.step(optimizer)
        self.scaler.update()
        taken = self.scaler.get_scale() >= before
        if not taken:
            log.info(
                "trainer.precision=fp16: a gradient overflowed; step left out, loss scale %g", self.scaler.get_scale()
            )
        return taken


def compute_exactly() -> None:
    """Let every operation of this process give the same bits whenever it is given the same."""
    if os.environ.get(CUBLAS) not in DETERMINISTIC_CUBLAS:
        os.environ[CUBLAS] = DETERMINISTIC_CUBLAS[0]  # read when cuBLAS starts
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property of it
    torch.backends.cudnn.benchmark = False


@contextmanager
def exactly(asked: bool = True) -> Iterator[None]:
    """Compute exactly, where that is asked for, in the block and from there on.

    Raises:
        SettingsError: for an operation of which torch has no such form.
    """
    if asked:
        compute_exactly()
    try:
        yield
    except RuntimeError as error:
        if not asked or not is_undetermined(error):
            raise
        operation = str(error).partition(UNDETERMINED)[0].strip()
        raise SettingsError(
            f"batch.exact=true: {operation} gives other bits each time, and torch has no other way to compute it here"
            f"{users_place(error)}; use another operation, or set batch.exact=false"
        ) from error


def is_undetermined(error: BaseException) -> bool:
    """Whether ``error`` is torch's for an operation that does not give the same bits each time."""
    return UNDETERMINED in str(error)


def to_device(batch: Any, device: torch.device, channels_last: bool = False) -> Any:
    """Move the tensors of a batch, which may be a tensor or nested in tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        order = torch.channels_last if channels_last and batch.ndim == 4 else torch.preserve_format  # noqa: PLR2004 - N, C, H, W
        return batch.to(device, non_blocking=True, memory_format=order)
    if isinstance(batch, dict):
        return {key: to_device(value, device, channels_last) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device, channels_last) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch
