"""One run on this rank: from settings to the end of training or evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from launcher.checkpoints.state import load_weights, save_weights, weights_sha256
from launcher.configure.devices import in_config_words, plan_of
from launcher.configure.parts import (
    Parts,
    build_optimizer,
    build_order,
    build_parts,
    build_scheduler,
    seed_streams,
    stream_seed,
)
from launcher.configure.schema import RunConfig
from launcher.data.loaders import loader
from launcher.observe.observer import Observer, Position, RunObserver
from launcher.observe.status import Status
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.processes.group import idle, process_group, release_idle
from launcher.training.batchnorm import combine_buffers
from launcher.training.check import check_test_rows, check_training_rows
from launcher.training.evaluate import Evaluator
from launcher.training.loop import Limits, Training
from launcher.training.precision import Precision
from launcher.training.step import Stepper
from launcher.training.stop import StopRule
from launcher.training.task import Task
from launcher.training.wrap import wrap
from samplers import BatchPlan, ExactlyOnceSampler, FixedGlobalBatchSampler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a run happens.

    Attributes:
        rank: this process.
        store: what the ranks meet at.
        run_dir: the run folder.
        device: of this rank.
        threads: that this rank computes with.
    """

    rank: Rank
    store: dist.Store
    run_dir: Path
    device: torch.device
    threads: int

    def describe(self, working: int) -> str:
        """One line: ranks, device, threads, folder."""
        ranks = f"{working} rank{'s' if working > 1 else ''}"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"devices          {ranks} on {self.device.type}, {threads} each\nrun folder       {self.run_dir}"


def start(run: RunConfig, place: Place) -> None:
    """Do what ``mode`` says, on this rank.

    Raises:
        SettingsError: for whatever turns out to be wrong before training.
    """
    if run.mode == "evaluate":
        with _group(run, place, place.rank.world_size):
            evaluate(run, place)
        return
    plan = plan_of(run.batch, place.rank.world_size)
    if place.rank.rank >= plan.active:
        idle(place.store, place.rank)
        return
    with _group(run, place, plan.active):
        train(run, place, plan)
        release_idle(place.store, place.rank, plan.active)


def train(run: RunConfig, place: Place, plan: BatchPlan) -> None:
    """Train, evaluate and keep the weights."""
    parts = build_parts(run, place.device)
    if run.checkpoint.load:
        log.info("weights from %s", load_weights(parts.model, run.checkpoint.load))
    _check(parts, place.device)
    training = assemble(run, place, plan, parts)
    seed_streams(run.seed, "rank", place.rank.rank)
    with training.observer.progress():
        state, position = training.run()
    combine_buffers(parts.model, _weight(plan, place.rank))
    if place.rank.rank == 0:
        save_weights(place.run_dir / "checkpoints", position.step, parts.model)
        training.observer.ended(state, position, weights_sha256(parts.model), _tunable(run))


def evaluate(run: RunConfig, place: Place) -> None:
    """Evaluate the weights of ``checkpoint.load`` on ``data.test``, each row once."""
    parts = build_parts(run, place.device)
    source = load_weights(parts.model, str(run.checkpoint.load))
    _check(parts, place.device)
    observer = _observer(run, place, place.rank.world_size)
    if place.rank.rank == 0:
        log.info("weights          %s\n%s", source, place.describe(place.rank.world_size))
    observer.evaluated(Position(), _evaluation(run, place, parts)())
    observer.ended("finished", Position(), weights_sha256(parts.model), {})


def assemble(run: RunConfig, place: Place, plan: BatchPlan, parts: Parts) -> Training:
    """Put the parts of a training together; says what will happen."""
    assert parts.train is not None, "mode=train builds data.train"  # noqa: S101 - our own mistake
    sampler = _sampler(run, plan, place.rank, parts.train)
    report = sampler.report()
    limits = _limits(run, report.steps(run.trainer.epochs), parts)
    stepper = _stepper(run, place, plan, parts.model, parts.task, limits.last_step)
    observer = _observer(run, place, plan.active, limits)
    if place.rank.rank == 0:
        log.info("%s\n%s", report, place.describe(plan.active))
    rows = _loader(run, place, parts.train, sampler)
    evaluation = None if parts.test is None else _combined(run, place, plan, parts)
    return Training(stepper, sampler, rows, evaluation, observer, limits)


@contextmanager
def _group(run: RunConfig, place: Place, world_size: int) -> Iterator[None]:
    backend = {"cuda": "nccl", "cpu": "gloo"}[place.device.type] if run.launch.backend == "auto" else run.launch.backend
    with process_group(place.store, place.rank, world_size, backend, place.device, run.launch.timeout_s):
        yield


def _check(parts: Parts, device: torch.device) -> None:
    if parts.train is not None:
        check_training_rows(parts.train, parts.model, parts.task, device)
    if parts.test is not None:
        check_test_rows(parts.test, parts.model, parts.task, parts.metrics, device)


def _limits(run: RunConfig, steps: int, parts: Parts) -> Limits:
    evaluated = [] if parts.test is None else ["loss", *parts.metrics]
    return Limits(
        epochs=run.trainer.epochs,
        last_step=min(run.trainer.max_steps or steps, steps),
        evaluate_every=run.trainer.evaluate_every,
        log_every=run.trainer.log_every,
        stop=StopRule.parse(run.trainer.stop_when, evaluated),
    )


def _sampler(run: RunConfig, plan: BatchPlan, rank: Rank, rows: Dataset[Any]) -> FixedGlobalBatchSampler:
    try:
        return FixedGlobalBatchSampler(
            build_order(run, rows),
            global_size=plan.global_size,
            rank=rank.rank,
            world_size=plan.active,
            compare_ranks=plan.active > 1,
            dataset=rows,
            tail=run.batch.tail,
            min_per_device=plan.min_per_device,
            max_per_device=plan.max_per_device,
            pad_weight=run.batch.pad_weight,
        )
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error


def _stepper(run: RunConfig, place: Place, plan: BatchPlan, model: nn.Module, task: Task, steps: int) -> Stepper:
    optimizer = build_optimizer(run, model)
    return Stepper(
        model=wrap(model, run.trainer.compile, run.ddp, place.device),
        task=task,
        optimizer=optimizer,
        scheduler=build_scheduler(run, optimizer, steps),
        precision=Precision.of(run.trainer.precision, place.device.type),
        device=place.device,
        world_size=plan.active,
        clip_norm=run.trainer.clip_norm,
        channels_last=run.trainer.channels_last,
    )


def _evaluation(run: RunConfig, place: Place, parts: Parts) -> Callable[[], dict[str, float]]:
    assert parts.test is not None, "mode=evaluate needs data.test"  # noqa: S101 - our own mistake
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    batches = ExactlyOnceSampler(parts.test, run.data.evaluate_batch, place.rank.rank, world_size)
    rows = _loader(run, place, parts.test, batches)
    precision = Precision.of(run.trainer.precision, place.device.type)
    evaluator = Evaluator(parts.task, parts.metrics, precision, place.device, run.trainer.channels_last)
    return partial(evaluator.evaluate, parts.model, rows)


def _loader(run: RunConfig, place: Place, rows: Dataset[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    """A loader whose workers draw from streams of this rank's own."""
    return loader(rows, batches, run.data.workers, place.device, stream_seed(run.seed, "workers", place.rank.rank))


def _combined(run: RunConfig, place: Place, plan: BatchPlan, parts: Parts) -> Callable[[], dict[str, float]]:
    """The evaluation, with the buffers that all ranks made together."""
    evaluation = _evaluation(run, place, parts)

    def evaluate() -> dict[str, float]:
        combine_buffers(parts.model, _weight(plan, place.rank))
        return evaluation()

    return evaluate


def _tunable(run: RunConfig) -> dict[str, Any]:
    """The settings by which runs are compared."""
    sections = ("seed", "batch", "model", "loss", "optimizer", "scheduler", "trainer", "vars")
    return {name: value for name, value in asdict(run).items() if name in sections}


def _weight(plan: BatchPlan, rank: Rank) -> float:
    """The part of the global batch that this rank takes."""
    return plan.share_rows(rank.rank) / plan.global_size


def _observer(run: RunConfig, place: Place, world_size: int, limits: Limits | None = None) -> Observer:
    if place.rank.rank != 0:
        return Observer()
    status = Status(world_size=world_size, restarts=place.rank.attempt)
    return RunObserver(place.run_dir, status, limits.last_step if limits else 0, run.trainer.epochs)
