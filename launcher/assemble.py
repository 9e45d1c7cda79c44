"""The parts of a training put together, from settings and what was built of them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from launcher.checkpoints.writer import Writer
from launcher.configure.parts import Parts
from launcher.configure.rows import sampler_of, seeded
from launcher.configure.schema import RunConfig
from launcher.context import RankContext
from launcher.data.loaders import loader
from launcher.observe.meter import Meter
from launcher.observe.observer import Observer, RunObserver
from launcher.observe.status import Status
from launcher.seeds import stream_seed
from launcher.training.agree import Agreement
from launcher.training.best import BestRule
from launcher.training.cadence import Cadence, in_words
from launcher.training.check import same_identity
from launcher.training.evaluate import Evaluator
from launcher.training.interval import Interval
from launcher.training.keep import Keeper, facts_of
from launcher.training.loop import Limits, Training, tell_epoch
from launcher.training.measure import meter_of, profiler_of
from launcher.training.patience import Patience
from launcher.training.progress import Progress, next_step_in_words
from launcher.training.reduction import Reduction
from launcher.training.resume import Resumed
from launcher.training.stepper import compute_of, stepper_of
from launcher.training.stop import StopRule
from samplers import BatchPlan, ExactlyOnceSampler, SeededRows

log = logging.getLogger(__name__)


def assemble(
    run: RunConfig, context: RankContext, plan: BatchPlan, parts: Parts, resumed: Resumed | None = None
) -> Training:
    """Put the parts of a training together, in the state they were kept in if any; says what will happen."""
    assert parts.train is not None, "mode=train builds data.train"  # noqa: S101 - our own mistake
    train = seeded(run, parts.train, "data.train")
    sampler = sampler_of(run, plan, context.rank, train, compare_ranks=plan.active > 1)
    report = sampler.report()
    steps = min(run.trainer.max_steps or sys.maxsize, report.steps(run.trainer.epochs))
    place = _device_of_the_group(context.device)
    meter = meter_of(run, context, parts, place, plan.active) if run.trainer.observe else Meter()
    stepper = replace(stepper_of(run, context.rank.rank, context.device, plan, parts, steps), clock=meter.clock)
    about = facts_of(run, stepper.compute, context.threads, plan.active, steps)
    if run.batch.exact:
        same_identity(about["identity"])
    progress = resumed.restore(parts, stepper, sampler, about) if resumed else Progress()
    stepper.finite.where = partial(next_step_in_words, progress, sampler)
    observer = observer_of(run, context, plan.active, steps, progress)
    if context.rank.rank == 0:
        kept = f"checkpoints      {in_words(run.checkpoint)}"
        log.info("%s\n%s", report, context.describe(plan.active, kept))
    cadence = Cadence(run.checkpoint.keep_every, run.checkpoint.background)
    keeper = Keeper(
        run_dir=context.run_dir,
        generations=run.checkpoint.keep,
        cadence=cadence,
        model=parts.model,
        stepper=stepper,
        stateful=parts.stateful,
        sampler=sampler,
        observer=observer,
        about=about,
        writer=None if context.rank.rank else Writer(cadence.beside),
        on_error=run.checkpoint.on_error,
        interval=_interval(run),
    )
    keeper.check()
    rows = _loader(run, context, train, sampler, keep=_workers_learn_the_epoch(train))
    evaluation = None if parts.test is None else _combined(run, context, parts, stepper.reduction)
    agreement = Agreement(lambda: context.signals.wish, context.watch.reached, place, lambda: keeper.interval.seconds)
    return Training(
        stepper=stepper,
        sampler=sampler,
        loader=rows,
        evaluate=evaluation,
        keeper=keeper,
        observer=observer,
        agreement=agreement,
        limits=_limits(run, parts),
        progress=progress,
        meter=meter,
        profiler=profiler_of(run, context, progress.done.step),
    )


def observer_of(
    run: RunConfig, context: RankContext, world_size: int, last_step: int = 0, progress: Progress | None = None
) -> Observer:
    """What is told of the run, on rank 0; ``progress`` is where it continues."""
    if context.rank.rank != 0:
        return Observer()
    now = progress or Progress()
    status = Status(
        **asdict(now.done),
        world_size=world_size,
        restarts=context.rank.attempt,
        metrics=dict(now.metrics),
        checkpoint_step=now.done.step or None,
    )
    return RunObserver(context.run_dir, status, last_step, run.trainer.epochs, evaluates=bool(run.data.test))


def evaluation_of(run: RunConfig, context: RankContext, parts: Parts) -> Callable[[], dict[str, float]]:
    """The evaluation of ``data.test``, each row once over all ranks; a collective."""
    assert parts.test is not None, "mode=evaluate needs data.test"  # noqa: S101 - our own mistake
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    rank, exact = context.rank.rank, run.batch.exact
    size = run.data.evaluate_batch
    batches = ExactlyOnceSampler(parts.test, size, rank, world_size, whole_batches=exact)
    test = seeded(run, parts.test, "data.test") if exact else parts.test
    tell_epoch(test, 0)
    rows = _loader(run, context, test, batches, keep=False)
    evaluator = Evaluator(
        task=parts.task,
        metrics=parts.metrics,
        compute=compute_of(run, context.device),
        rows=len(parts.test),  # type: ignore[arg-type]
        place=(lambda number: number * world_size + rank) if exact else (lambda _: rank),
        seed=run.seed if exact else None,
        gives_up=lambda: context.signals.notes and context.signals.wish is not None,
    )
    return partial(evaluator.evaluate, parts.model, rows)


def _interval(run: RunConfig) -> Interval:
    failure_s = run.checkpoint.expected_failure_s if run.checkpoint.by_cost else None
    return Interval(run.checkpoint.every_seconds, failure_s)


def _loader(
    run: RunConfig, context: RankContext, rows: Dataset[Any], batches: Sampler[list[int]], keep: bool
) -> DataLoader[Any]:
    """A loader whose workers draw from streams of this rank's own."""
    seed = stream_seed(run.seed, "workers", context.rank.rank)
    return loader(rows, batches, run.data.workers, context.device, seed, keep=keep, alike=run.batch.exact)


def _workers_learn_the_epoch(rows: Dataset[Any]) -> bool:
    """Whether workers may outlive an epoch: a dataset that is told the epoch keeps, in them, the one it came with."""
    return not hasattr(rows.dataset if isinstance(rows, SeededRows) else rows, "set_epoch")


def _combined(
    run: RunConfig, context: RankContext, parts: Parts, reduction: Reduction
) -> Callable[[], dict[str, float]]:
    """The evaluation, with the buffers that all ranks made together."""
    evaluation = evaluation_of(run, context, parts)

    def evaluate() -> dict[str, float]:
        reduction.combine_buffers()
        return evaluation()

    return evaluate


def _device_of_the_group(device: torch.device) -> torch.device:
    """Where the process group takes numbers of this rank."""
    return torch.device("cpu") if not dist.is_initialized() or dist.get_backend() == "gloo" else device


def _limits(run: RunConfig, parts: Parts) -> Limits:
    evaluated = [] if parts.test is None else ["loss", *parts.metrics]
    return Limits(
        epochs=run.trainer.epochs,
        max_steps=run.trainer.max_steps,
        evaluate_every=run.trainer.evaluate_every,
        log_every=run.trainer.log_every,
        stop=StopRule.parse(run.trainer.stop_when, evaluated),
        patience=Patience.parse(run.trainer.patience, run.checkpoint.keep_best, evaluated),
        best=BestRule.parse(run.checkpoint.keep_best, evaluated),
    )
