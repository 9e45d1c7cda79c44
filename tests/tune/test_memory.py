"""Lack of memory in all its forms, what there is, and what ranks say to each other."""

import resource
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from launcher.processes.errors import PlainError
from launcher.processes.failures import AnotherFailedError, failure_key
from launcher.tune import memory, probing
from launcher.tune.memory import died_of_memory, is_out_of_memory, limited_to
from launcher.tune.probing import Outcome, exchange, joined

GIB = 2**30
IN_WORDS = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "GET was unable to find an engine to execute this computation",
    "NCCL error: unhandled cuda error, NCCL version 2.27.5\nFailed to CUDA calloc 4194304 bytes",
    "could not create a primitive",
    "std::bad_alloc",
    "can't start new thread",
    "unable to mmap 4096 bytes from file </torch_1>: Cannot allocate memory (12)",
]


def caused_by(error):
    outer = ValueError("the model could not be built")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("any"), OSError(12, "Cannot allocate memory"), *map(RuntimeError, IN_WORDS)],
)
def test_lack_of_memory_is_known_in_all_its_forms(error):
    assert is_out_of_memory(error)
    assert is_out_of_memory(caused_by(error))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x4 and 5x3)"),
        RuntimeError("CUDA error: device-side assert triggered"),
        ValueError("out of memory is a word of mine"),
        KeyError("memory"),
    ],
)
def test_what_else_goes_wrong_is_no_lack_of_memory(error):
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ("status", "smaller_ran", "of_memory"),
    [
        (-signal.SIGKILL, False, True),
        (-signal.SIGSEGV, True, True),
        (-signal.SIGABRT, True, True),
        (-signal.SIGSEGV, False, False),
        (-signal.SIGTERM, True, False),
        (1, True, True),
        (1, False, False),
        (3, True, False),
        (0, True, False),
        (None, True, False),
    ],
)
def test_a_crash_counts_where_a_smaller_size_ran(status, smaller_ran, of_memory):
    assert died_of_memory(status, smaller_ran=smaller_ran) == of_memory


def test_a_limit_is_felt_and_taken_back():
    before = resource.getrlimit(resource.RLIMIT_AS)
    for take in (lambda: torch.empty(GIB // 4), lambda: np.empty(GIB // 8), lambda: bytearray(GIB)):
        with limited_to(GIB // 2), pytest.raises((MemoryError, RuntimeError)) as raised:
            take()
        assert is_out_of_memory(raised.value)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(GIB)) == GIB


def test_a_hard_limit_holds_for_what_a_process_began_with(monkeypatch):
    assert memory.within_hard_limit(GIB) == GIB
    now = memory.now_and_peak()[0]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (now + GIB // 4, now + GIB // 2))
    monkeypatch.setattr(memory, "now_and_peak", lambda: (now, now))
    assert memory.within_hard_limit(GIB) == GIB // 2
    assert memory.within_hard_limit(GIB // 8) == GIB // 8


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/job/step\n", {"job": ("memory.max", 100, "memory.current", 60, "inactive_file 20")}, [60]),
        ("0::/job/step\n", {"job": ("memory.max", "max", "memory.current", 60, "inactive_file 20")}, []),
        (
            "5:cpu:/x\n4:memory:/job\n0::/\n",
            {"memory/job": ("memory.limit_in_bytes", 100, "memory.usage_in_bytes", 70, "total_inactive_file 5")},
            [35],
        ),
    ],
)
def test_what_cgroups_leave(tmp_path, own, files, left):
    (tmp_path / "own").write_text(own)
    for folder, (most, limit, used, taken, cached) in files.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, content in ((most, limit), (used, taken), ("memory.stat", cached)):
            (tmp_path / folder / name).write_text(f"{content}\n")
    assert list(memory.left_in_cgroups(tmp_path, tmp_path / "own")) == left


def test_it_fits_where_it_does_on_all_ranks():
    def measured(why_not=None, peak=1, step_s=(1.0, 1.0), evaluate_s=None):
        return {"why_not": why_not, "peak_bytes": peak, "step_s": step_s, "evaluate_s": evaluate_s}

    slow = measured(peak=5, step_s=(1.0, 3.0), evaluate_s=0.5)
    both = joined(8, [slow, measured(peak=7, evaluate_s=0.1)])
    assert (both.fits, both.peak_bytes, both.step_s, both.evaluate_s) == (True, 7, (1.0, 3.0), 0.5)
    short = joined(8, [slow, measured("MemoryError", step_s=())])
    assert (short.fits, short.why_not, short.step_s, short.rows_per_s) == (False, "rank 1: MemoryError", (), 0.0)


@dataclass
class Watch:
    """Sees that a rank is gone, or not."""

    dead: bool = False

    def blame_dead(self, _mine):
        return self.dead


def context(dead=False):
    return SimpleNamespace(store=dist.HashStore(), rank=SimpleNamespace(rank=0, attempt=0), watch=Watch(dead))


def test_a_rank_that_gives_no_answer_is_named(monkeypatch):
    monkeypatch.setattr(probing, "SLOWER_S", 0.0)
    mine = Outcome({"why_not": None}, None, names_size=True, load=0.5)
    assert exchange(context(), 1, 0, mine, 0.0) == [mine]
    with pytest.raises(PlainError, match="rank 1 gave no answer about its memory within 0 s"):
        exchange(context(), 2, 0, mine, 0.0)


def test_nobody_waits_for_a_rank_that_is_gone():
    mine = Outcome(None, "rank 0: ValueError: no", names_size=False, load=0.5)
    with pytest.raises(AnotherFailedError):
        exchange(context(dead=True), 2, 0, mine, 600.0)
    failed = context()
    failed.store.set(failure_key(0), "{}")
    with pytest.raises(AnotherFailedError):
        exchange(failed, 2, 0, mine, 600.0)
