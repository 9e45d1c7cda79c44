"""What the bits of a run depend on beside its settings' promise of the same rows: machine, versions, number formats."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from launcher.configure.schema import RunConfig

NAME = "identity.json"
CPU_FACTS = Path("/proc/cpuinfo")
WORDS = {"threads": "threads per rank", "instructions": "instruction set"}


@dataclass(frozen=True)
class Identity:
    """What two runs must share to have the same bits.

    Attributes:
        python: version.
        torch: version, with its build.
        torchvision: version; None where it is not installed.
        numpy: version.
        device: model name of the GPU or CPU.
        instructions: the instruction set that torch's CPU kernels use.
        threads: that each rank computes with.
        exact: ``batch.exact``.
        shard_rows: rows of a shard; None where shards are not in force.
        ranks: that the rows of a global batch are dealt to; None in exact mode, which does not depend on it.
        precision: ``trainer.precision``.
        compile: ``trainer.compile``.
        channels_last: whether images lie in channels-last memory order.
        seed: of the run.
    """

    python: str
    torch: str
    torchvision: str | None
    numpy: str
    device: str
    instructions: str
    threads: int
    exact: bool
    shard_rows: int | None
    ranks: int | None
    precision: str
    compile: bool | str
    channels_last: bool
    seed: int


def identity_of(run: RunConfig, device: torch.device, channels_last: bool, threads: int, ranks: int) -> Identity:
    """The identity of ``run`` in this process, on ``device``."""
    return Identity(
        python=platform.python_version(),
        torch=torch.__version__,
        torchvision=_installed("torchvision"),
        numpy=np.__version__,
        device=_device_name(device),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=threads,
        exact=run.batch.exact,
        shard_rows=run.shard_rows,
        ranks=None if run.batch.exact else ranks,
        precision=run.trainer.precision,
        compile=run.trainer.compile,
        channels_last=channels_last,
        seed=run.seed,
    )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two identities as they are kept: ``torch 2.13.0 -> 2.14.1, threads per rank 2 -> 1``.

    What only one of them knows, as after an update of this package, is passed over.
    """
    names = [name for name in now if name in before and before[name] != now[name]]
    return ", ".join(f"{WORDS.get(name, name)} {before[name]} -> {now[name]}" for name in names)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
