"""Memory: how much there is, how much a probe took, and what it looks like when it runs out."""

from __future__ import annotations

import ctypes
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch

KIB = 1024
M_ARENA_MAX = -8
OUT = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|unable to allocate|std::bad_alloc|bad allocation"
    r"|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|NOT_(SUPPORTED|INITIALIZED))"
    r"|unable to find an engine to execute this computation|failed to CUDA (calloc|malloc)|cuda malloc failed"
    r"|could not create a (primitive|memory object)|can't start new thread|unable to mmap|failed to map segment"
    r"|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)
"""What libraries say that found no memory; cuBLAS and cuDNN have no memory for their handles and workspaces."""
ENDED = (1, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
"""How a process ends that found no memory, where a library does not look at what it is given; 1: libgomp's way."""
CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says that there was no memory left, in whatever words."""
    while True:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError | OSError | ImportError) and OUT.search(str(error)):
            return True
        cause = error.__cause__ or error.__context__
        if cause is None:
            return False
        error = cause


def died_of_memory(exit_status: int | None, *, smaller_ran: bool) -> bool:
    """Whether a process that ended with this status, of a signal its number below zero, did so for lack of memory.

    Args:
        exit_status: None where it is not known.
        smaller_ran: whether a smaller size ran; a crash that comes with more rows is put down to memory.
    """
    if exit_status == -signal.SIGKILL:
        return True
    return smaller_ran and exit_status in ENDED


def available_here(ranks: int) -> int:
    """Bytes of main memory that a rank may take: of this machine and its cgroup a part, of its own limit the rest."""
    machine = min([int(psutil.virtual_memory().available), *left_in_cgroups()]) // max(1, ranks)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return machine if limit == resource.RLIM_INFINITY else max(0, min(machine, limit - now_and_peak()[0]))


def now_and_peak() -> tuple[int, int]:
    """Bytes of address space that this process takes, and the most it took; what ``RLIMIT_AS`` counts."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(status[name].split()[0]) * KIB for name in ("VmSize", "VmPeak"))
    return now, peak


def take_what_is_used() -> None:
    """Let threads that are started from here on reserve no address space of their own, where the C library is glibc.

    Each would reserve 64 MiB, which nothing else needs to fit into.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def within_hard_limit(available_bytes: int) -> int:
    """Of so many bytes, those that this process may take: it may have begun with more than the rank that it is of."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    return available_bytes if hard == resource.RLIM_INFINITY else max(0, min(available_bytes, hard - now_and_peak()[0]))


@contextmanager
def limited_to(available_bytes: int) -> Iterator[None]:
    """Let this process find no more than so many bytes for the length of the block, instead of being killed for more.

    What asks for more gets a MemoryError, or what else ``is_out_of_memory`` knows.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = now_and_peak()[0] + available_bytes
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def left_in_cgroups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Bytes that the cgroups of this process, and those above them, leave it; files in the cache can be let go.

    Args:
        root: where cgroups are found.
        own: what says of which this process is one.
    """
    for folder in _cgroups(root, own):
        for most, used, cached in CGROUPS:
            try:
                limit = (folder / most).read_text().strip()
                taken = int((folder / used).read_text())
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            if limit.isdecimal():
                yield max(0, int(limit) - taken + int(counts.get(cached, 0)))


def _cgroups(root: Path, own: Path) -> Iterator[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        inner = top / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))
