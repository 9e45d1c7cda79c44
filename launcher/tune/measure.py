"""One probe, in a process of its own: a few steps and one evaluation with micro-batches of one size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from launcher.configure.parts import Parts, build_parts
from launcher.configure.rows import seeded
from launcher.configure.schema import RunConfig
from launcher.data.loaders import loader
from launcher.processes.errors import SettingsError
from launcher.processes.group import backend_of, stay_on_this_node
from launcher.processes.threads import use_threads
from launcher.seeds import stream_seed
from launcher.training.compute import compute_exactly
from launcher.training.evaluate import Evaluator
from launcher.training.finite import FiniteSteps
from launcher.training.fit import check_parts
from launcher.training.loop import tell_epoch
from launcher.training.step import MicroBatch, Stepper
from launcher.training.stepper import compute_of, stepper_of
from launcher.tune.memory import is_out_of_memory, limited_to, now_and_peak, within_hard_limit
from samplers import BatchPlan, Share, Shuffled
from samplers.words import counted

SCHEDULED = 10_000
WARM_UP, MEASURED, MOST = 1, 2, 20
"""Steps that are not timed, those that are timed at least, and at most."""
LONG_ENOUGH_S = 0.3
"""Seconds of timed steps from which on there are no more of them than must be."""


@dataclass(frozen=True)
class Order:
    """What a probe is to do.

    Attributes:
        run: the settings.
        rows: of a micro-batch.
        micro_batches: of a step.
        several: whether the run has several ranks, whose gradients are joined.
        grain: rows of a shard, where shards are in force.
        device: of the rank.
        threads: that it computes with.
        available_bytes: of main memory, which the probe may take on the CPU.
    """

    run: RunConfig
    rows: int
    micro_batches: int
    several: bool
    grain: int | None
    device: torch.device
    threads: int
    available_bytes: int


@dataclass(frozen=True)
class Measured:
    """What a probe found out.

    Attributes:
        why_not: how memory ran out; None: it did not.
        peak_bytes: that it took at most, beyond what the process took before.
        step_s: seconds of each timed micro-batch.
        evaluate_s: seconds of the micro-batch in evaluation; None: nothing is evaluated.
        available_bytes: that there were.
        train_rows: of ``data.train``; None: it was not read any more.
    """

    why_not: str | None
    peak_bytes: int
    step_s: tuple[float, ...]
    evaluate_s: float | None
    available_bytes: int
    train_rows: int | None

    @classmethod
    def none(cls, why_not: str, available_bytes: int) -> Measured:
        """Nothing was measured, for lack of memory."""
        return cls(why_not, 0, (), None, available_bytes, None)


@dataclass
class Found:
    """What a probe found out so far; the fields are those of ``Measured``."""

    step_s: tuple[float, ...] = ()
    evaluate_s: float | None = None
    train_rows: int | None = None


def measure(order: Order) -> Measured:
    """Do as ``order`` says, in a process that ends with it.

    Raises:
        Exception: whatever is wrong but for lack of memory.
    """
    use_threads(order.threads)
    if order.run.batch.exact:
        compute_exactly()
    memory = Cuda(order.device) if order.device.type == "cuda" else Main(order.available_bytes)
    found, why_not = Found(), None
    with memory.limited():
        try:
            _try(order, found)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why_not = _first_line(error)
    why_not = why_not or memory.complaint()
    if why_not is not None:
        found = Found(train_rows=found.train_rows)
    return Measured(why_not, memory.peak(), found.step_s, found.evaluate_s, memory.available_bytes, found.train_rows)


class Main:
    """Main memory: the address space of this process, of which a limit can be set."""

    def __init__(self, available_bytes: int) -> None:
        self.available_bytes = within_hard_limit(available_bytes)
        self._before, _ = now_and_peak()

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Nothing beyond what is available is found in the block."""
        with limited_to(self.available_bytes):
            yield

    def peak(self) -> int:
        """Bytes taken at most."""
        return now_and_peak()[1] - self._before

    def complaint(self) -> None:
        """It says by itself when it runs out."""


class Cuda:
    """The memory of a CUDA device, as torch's allocator takes it."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self._device = device
        torch.zeros(1, device=device)
        self.available_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A device has its own limit."""
        yield

    def peak(self) -> int:
        """Bytes taken at most."""
        return torch.cuda.max_memory_allocated(self._device)

    def complaint(self) -> str | None:
        """Why it does not fit although nothing was raised: memory was so short that the allocator had to start over."""
        retries = int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))
        return f"the allocator had to free its cache and try again {retries} times" if retries else None


def _try(order: Order, found: Found) -> None:
    """Build the run's parts, take steps and evaluate; what is found out goes to ``found``."""
    run, device = replace(order.run, mode="train"), order.device
    with _group_of_one(run, device) if order.several else nullcontext():
        parts = build_parts(run, device)
        check_parts(run, parts, compute_of(run, device))  # each time, since it takes memory too
        assert parts.train is not None  # noqa: S101 - mode=train builds it
        found.train_rows = len(parts.train)  # type: ignore[arg-type]
        check_enough(found.train_rows, order.rows)
        plan = BatchPlan(order.rows * order.micro_batches, 1, 1, order.rows, order.grain)
        stepper = stepper_of(run, 0, device, plan, parts, SCHEDULED, as_of_several=order.several)
        # Steps with the same rows again and again tell nothing of how a run ends, should they diverge.
        stepper = replace(stepper, finite=FiniteSteps(skips=True, most_in_a_row=SCHEDULED))
        batch = _first_rows(run, device, parts.train, "data.train", order.rows)
        found.step_s = _timed_steps(order, stepper, batch)
        found.evaluate_s = _timed_evaluation(order, parts, run)


def check_enough(train_rows: int, rows: int) -> None:
    """Refuse data without even one micro-batch.

    Raises:
        SettingsError: with both numbers.
    """
    if train_rows < rows:
        raise SettingsError(
            f"data.train has {counted(train_rows, 'row')}, too few to try a micro-batch of {rows}; lower "
            "batch.min_per_device or give more rows"
        )


def _timed_steps(order: Order, stepper: Stepper, batch: Any) -> tuple[float, ...]:
    total, found = order.rows * order.micro_batches, []
    shards = range(order.rows // order.grain) if order.grain else range(0)
    for number in range(WARM_UP + MOST):
        share = [
            Share(number, order.rows, order.rows, total, k == 1, shards) for k in range(order.micro_batches, 0, -1)
        ]
        micro_batches: list[MicroBatch] = [(batch, each) for each in share]
        stepper.begin(number)
        seconds = _seconds(order.device, lambda taken=micro_batches: stepper.step(taken))  # type: ignore[misc]
        if number >= WARM_UP:
            found.append(seconds / order.micro_batches)
        if len(found) >= MEASURED and sum(found) * order.micro_batches > LONG_ENOUGH_S:
            break
    return tuple(found)


def _timed_evaluation(order: Order, parts: Parts, run: RunConfig) -> float | None:
    if parts.test is None:
        return None
    batch = _first_rows(run, order.device, parts.test, "data.test", min(order.rows, run.data.evaluate_batch))
    evaluator = Evaluator(parts.task, parts.metrics, compute_of(run, order.device))
    return _seconds(order.device, lambda: evaluator.evaluate(parts.model, [batch]))


def _first_rows(run: RunConfig, device: torch.device, dataset: Dataset[Any], option: str, rows: int) -> Any:
    """Rows in random order as one batch, from the start again where there are too few."""
    rows_read = seeded(run, dataset, option)
    tell_epoch(rows_read, 0)
    n = len(dataset)  # type: ignore[arg-type]
    indices = Shuffled(n, seed=run.seed).indices(0, np.arange(rows) % n).tolist()
    seed = stream_seed(run.seed, "workers", 0)
    return next(iter(loader(rows_read, [indices], 0, device, seed, keep=False)))  # type: ignore[arg-type]


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


@contextmanager
def _group_of_one(run: RunConfig, device: torch.device) -> Iterator[None]:
    """A process group of this process alone, with which the model has the buckets of one of several ranks."""
    stay_on_this_node()
    dist.init_process_group(
        backend_of(run.launch.backend, device),
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _first_line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
