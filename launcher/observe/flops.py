"""How much of what a device could compute a model makes use of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

BACKWARD = 2
"""Backward computes twice what forward does: gradients of the inputs and of the weights of each layer."""
TERA = 1e12
# Peaks of matrix products without sparsity, from the makers' data sheets; float32 as TF32 where the device has it,
# which convolutions take by default. The first name whose words are all in that of the device counts.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H200 NVL": {"bf16": 835.5, "fp16": 835.5, "fp32": 417.5},
    "H200": {"bf16": 989.4, "fp16": 989.4, "fp32": 494.7},
    "H100 PCIe": {"bf16": 756.0, "fp16": 756.0, "fp32": 378.0},
    "H100 NVL": {"bf16": 835.0, "fp16": 835.0, "fp32": 417.5},
    "H100": {"bf16": 989.4, "fp16": 989.4, "fp32": 494.7},
    "A100": {"bf16": 312.0, "fp16": 312.0, "fp32": 156.0},
    "A40": {"bf16": 149.7, "fp16": 149.7, "fp32": 74.8},
    "A30": {"bf16": 165.0, "fp16": 165.0, "fp32": 82.0},
    "L40S": {"bf16": 362.05, "fp16": 362.05, "fp32": 183.0},
    "V100": {"fp16": 125.0, "fp32": 15.7},
    "T4": {"fp16": 65.0, "fp32": 8.1},
}
"""TFLOP/s by device and ``trainer.precision``."""


@dataclass(frozen=True)
class Flops:
    """What a model computes, and what the device could.

    Attributes:
        per_row: floating-point operations of a row in training, forward and backward; what is computed again to save
            memory does not count.
        peak: operations per second of the device.
    """

    per_row: float
    peak: float

    def utilisation(self, rows_per_s: float) -> float:
        """The share of the peak that so many rows per second on one device make use of.

        >>> Flops(per_row=3e9, peak=1e12).utilisation(100.0)
        0.3
        """
        return self.per_row * rows_per_s / self.peak


def peak_of(name: str, precision: str) -> float | None:
    """Operations per second of a device, by its name; None where that is not known.

    >>> peak_of("NVIDIA H100 80GB HBM3", "bf16"), peak_of("NVIDIA H100 PCIe", "fp32")
    (989400000000000.0, 378000000000000.0)
    >>> peak_of("Tesla V100-SXM2-16GB", "bf16"), peak_of("Radeon", "fp32"), peak_of("H100 MIG 1g.10gb", "bf16")
    (None, None, None)
    """
    words = name.replace("-", " ").split()
    if "MIG" in words:  # a part of a device, of which the name does not tell how large it is
        return None
    found = next((peaks for known, peaks in PEAKS.items() if _is_part(known.split(), words)), {})
    return found[precision] * TERA if precision in found else None


def _is_part(known: list[str], words: list[str]) -> bool:
    return all(word in words for word in known)


def flops_of_a_row(forward: Callable[[], object], rows: int) -> float:
    """Operations of a row in forward and backward, counted while ``forward`` computes so many rows."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - slow to import, and few devices are known

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        forward()
    return (1 + BACKWARD) * counter.get_total_flops() / rows
