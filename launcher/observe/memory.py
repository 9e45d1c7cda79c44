"""How much memory a rank takes, on its device."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

STATUS = Path("/proc/self/status")
KIB = 1024


def memory_of(device: torch.device) -> dict[str, float]:
    """Bytes that this process takes on ``device``.

    Returns:
        ``now_bytes`` and ``peak_bytes`` since it began, where they are known. On the CPU they are its resident set. On
        CUDA they are its tensors; ``reserved_bytes`` is what the allocator keeps for them, and ``allocator_retries``
        how often it had to give all it kept back before it found room.
    """
    if device.type == "cuda":
        found = torch.cuda.memory_stats(device)
        return {
            "now_bytes": found.get("allocated_bytes.all.current", 0),
            "peak_bytes": found.get("allocated_bytes.all.peak", 0),
            "reserved_bytes": found.get("reserved_bytes.all.current", 0),
            "allocator_retries": found.get("num_alloc_retries", 0),
        }
    try:
        return resident(STATUS.read_text(encoding="utf-8"))
    except OSError:  # another system than Linux
        return {"now_bytes": psutil.Process().memory_info().rss}


def resident(status: str) -> dict[str, float]:
    r"""What the system says of a process's resident set.

    >>> resident("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    {'now_bytes': 1048576.0, 'peak_bytes': 2097152.0}
    """
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    names = {"now_bytes": "VmRSS", "peak_bytes": "VmHWM"}
    return {name: float(lines[line].split()[0]) * KIB for name, line in names.items() if line in lines}
