"""One run on this rank: from settings to the end of training or evaluation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from launcher.assemble import assemble, evaluation_of, observer_of
from launcher.checkpoints.export import check_export, export_weights
from launcher.checkpoints.identity import NAME as IDENTITY
from launcher.checkpoints.load import load_weights
from launcher.checkpoints.state import weights_sha256
from launcher.configure.devices import plan_of
from launcher.configure.given import NAME as COMMAND
from launcher.configure.parts import build_parts
from launcher.configure.run_folder import CONFIG, to_yaml
from launcher.configure.schema import RunConfig
from launcher.context import RankContext
from launcher.observe.observer import Done
from launcher.observe.report import write_report
from launcher.observe.status import Status, to_json, write_status
from launcher.observe.story import PLAN
from launcher.processes.group import backend_of, process_group, tell_the_end, wait_for_the_end
from launcher.training.compute import exactly
from launcher.training.fit import check_parts
from launcher.training.resume import find, take_states
from launcher.training.stepper import compute_of
from launcher.tune.auto import settled
from launcher.tune.examine import look
from launcher.tune.find import find_size, first_order
from launcher.tune.tell import tell
from samplers import BatchPlan

log = logging.getLogger(__name__)


def start(run: RunConfig, context: RankContext) -> str:
    """Do what ``mode`` says, on this rank.

    Returns:
        The state in which the run ended: finished, stopped or preempted.

    Raises:
        SettingsError: for whatever turns out to be wrong before training.
    """
    if run.mode == "evaluate":
        with _group(run, context, context.rank.world_size), exactly(run.batch.exact):
            return evaluate(run, context)
    plan = plan_of(run, context.rank.world_size)
    if context.rank.rank >= plan.active:
        context.watch.stand_apart()
        with context.signals.noted():
            return wait_for_the_end(context.store, context.rank, context.signals)
    if run.mode == "tune":
        return tune(run, context, plan.active)
    run = settled(run, context, plan.active)
    plan = plan_of(run, context.rank.world_size)
    with _group(run, context, plan.active), exactly(run.batch.exact):
        state = train(run, context, plan)
        _end_together(context, state)
    return state


def _end_together(context: RankContext, state: str) -> None:
    with suppress(dist.DistError):  # the launcher is gone, and nobody waits any more
        if context.rank.rank == 0:
            tell_the_end(context.store, context.rank, state)
        elif state == "preempted":  # a launcher ends all ranks when the first one leaves
            wait_for_the_end(context.store, context.rank, context.signals)


def tune(run: RunConfig, context: RankContext, ranks: int) -> str:
    """Find the micro-batch that fits and pays, and tell of it; returns the state at the end."""
    tuning = find_size(run, context, ranks)
    if context.rank.rank == 0:
        order = replace(first_order(run, context, ranks), rows=tuning.recommended)
        examined = look(order, context, run.tune.timeout_s)
        tell(tuning, run, context.run_dir, context.device, ranks, examined)
        ended = Status(state="finished", world_size=ranks, restarts=context.rank.attempt)
        write_status(context.run_dir, ended)
        log.info("finished; run folder %s", context.run_dir)
    _end_together(context, "finished")
    return "finished"


def train(run: RunConfig, context: RankContext, plan: BatchPlan) -> str:
    """Train, evaluate and keep the weights; returns the state in which that ended."""
    check_export(run.checkpoint.export)
    resumed = find(run, context.rank, context.store, context.run_dir)
    parts = build_parts(run, context.device)
    if run.checkpoint.load and resumed is None:
        log.info("weights from %s", load_weights(parts.model, run.checkpoint.load))
    check_parts(run, parts, compute_of(run, context.device))
    training = assemble(run, context, plan, parts, resumed)
    if resumed is not None and resumed.told and training.is_over:
        log.info("nothing is left to do: the run has ended there; its results stay as they are")
        _export(run, context, parts.model)
        return "finished"
    identity = to_json(training.keeper.about["identity"])
    told = {COMMAND: context.command, CONFIG: to_yaml(run), IDENTITY: identity, PLAN: f"{training.sampler.report()}\n"}
    training.observer.began(told)
    context.watch.begin(plan.active, run.launch.timeout_s)
    with training.observer.progress(), context.signals.noted(), training.keeper.writing():
        with training.profiler.running():
            ending = training.run()
        context.watch.stand_apart()
    if ending.wish:
        training.observer.preempted(ending.done, str(ending.wish))
    elif context.rank.rank == 0:
        _export(run, context, parts.model)
        training.observer.ended(ending.state, ending.done, weights_sha256(parts.model), _tunable(run))
    if context.rank.rank == 0:
        write_report(context.run_dir, ending.measured)
    return ending.state


def evaluate(run: RunConfig, context: RankContext) -> str:
    """Evaluate the weights of ``checkpoint.load`` on ``data.test``, each row once; returns the state at the end."""
    parts = build_parts(run, context.device)
    source = load_weights(parts.model, str(run.checkpoint.load))
    take_states(Path(source), run, parts)
    check_parts(run, parts, compute_of(run, context.device))
    observer = observer_of(run, context, context.rank.world_size)
    observer.began({})
    if context.rank.rank == 0:
        log.info("weights          %s\n%s", source, context.describe(context.rank.world_size))
    observer.evaluated(Done(), evaluation_of(run, context, parts)())
    if context.rank.rank == 0:
        observer.ended("finished", Done(), weights_sha256(parts.model), {})
    return "finished"


def _export(run: RunConfig, context: RankContext, model: nn.Module) -> None:
    if run.checkpoint.export and context.rank.rank == 0:
        log.info("weights for others: %s", export_weights(model, context.run_dir))


@contextmanager
def _group(run: RunConfig, context: RankContext, world_size: int) -> Iterator[None]:
    backend = backend_of(run.launch.backend, context.device)
    with process_group(context.store, context.rank, world_size, backend, context.device, run.launch.timeout_s):
        yield


def _tunable(run: RunConfig) -> dict[str, Any]:
    """The settings by which runs are compared."""
    sections = ("seed", "batch", "model", "loss", "optimizer", "scheduler", "trainer", "vars")
    return {name: value for name, value in asdict(run).items() if name in sections}
