"""A sweep from its command line to its exit status."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from launcher.configure.command_line import CommandLine
from launcher.configure.start import first_rank
from launcher.configure.sweep import SweepConfig
from launcher.processes import errors
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.processes.signals import Preempted, Signals
from launcher.sweep.carried import Carried
from launcher.sweep.composer import Composer, how_of
from launcher.sweep.crew import Alone, Crew
from launcher.sweep.engine import Engine
from launcher.sweep.folder import claim
from launcher.sweep.ledger import NAME, Definition, Ledger
from launcher.sweep.order import leave_order
from launcher.sweep.plan import Plan
from launcher.sweep.pool import Devices
from launcher.sweep.ranks import prepare_to_start
from launcher.sweep.sweeper import Settings, Sweeper, sweeper_of
from launcher.sweep.together import Together, end_of_sweep, follow
from launcher.sweep.view import console_of


def sweep(line: CommandLine, rank: Rank, store: dist.Store, signals: Signals) -> int:
    """Carry out a sweep; returns its exit status, the same on every rank.

    Raises:
        SettingsError: on rank 0, for whatever is wrong with the settings of the sweep or of a job.
    """
    if rank.rank:
        prepare_to_start()
        with signals.noted():
            return follow(rank, store, os.environ, signals)
    status = errors.FAILED
    try:
        with ExitStack() as held:
            status = _carry_out(line, rank, store, signals, held)
    except SettingsError:
        status = errors.WRONG_SETTINGS
        raise
    except Preempted:
        status = errors.PREEMPTED
        raise
    finally:
        end_of_sweep(store, rank, status)
    return status


def _carry_out(line: CommandLine, rank: Rank, store: dist.Store, signals: Signals, held: ExitStack) -> int:
    sweeper, settings = sweeper_of(line)
    if settings.launch.engine == "slurm":
        return _in_slurm(line, sweeper, settings, rank, store, held)
    crew = _crew(settings, rank, store)
    composer = Composer(line, tuple(sweeper.hydra_overrides), how_of(line), settings.folder, rank, crew)
    if settings.mode == "plan":
        sweeper.sweep(Plan(composer, settings))
        return errors.FINISHED
    prepare_to_start()
    folder = claim(settings.folder, settings.folder_is_new, held, store)
    definition = Definition.of(line.overrides, sweeper.name, settings.sweep.metric)
    ledger = _ledger(folder, definition, settings.sweep.resume or rank.attempt > 0)
    engine = _engine(settings.sweep, crew, ledger, signals)
    with signals.noted(), ExitStack() as seen:
        composer = replace(composer, sweep_dir=folder, owners=ledger.owners())
        carried = Carried(composer, engine, console_of(sys.stderr), seen)
        sweeper.sweep(carried)
    return carried.conclude()


def _in_slurm(
    line: CommandLine, sweeper: Sweeper, settings: Settings, rank: Rank, store: dist.Store, held: ExitStack
) -> int:
    from launcher.slurm.array import Array, ArrayPlan, Queue, check  # noqa: PLC0415 - few submit anything

    notes = check(sweeper, settings)
    queue = Queue(settings.sweep.parallel)
    composer = Composer(line, tuple(sweeper.hydra_overrides), how_of(line), settings.folder, rank, queue)
    if settings.mode == "plan":
        sweeper.sweep(ArrayPlan(composer, settings))
        return errors.FINISHED
    folder = claim(settings.folder, settings.folder_is_new, held, store)
    definition = Definition.of(line.overrides, sweeper.name, settings.sweep.metric)
    ledger = _ledger(folder, definition, settings.sweep.resume)
    array = Array(replace(composer, sweep_dir=folder), settings, ledger, notes)
    sweeper.sweep(array)
    return array.conclude()


def _engine(settings: SweepConfig, crew: Crew, ledger: Ledger, signals: Signals) -> Engine:
    return Engine(
        crew=crew,
        ledger=ledger,
        signals=signals,
        order=leave_order,
        metric=settings.metric,
        timeout_s=settings.job_timeout_s,
        most_failures=settings.most_failures,
    )


def _crew(settings: Settings, rank: Rank, store: dist.Store) -> Crew:
    if rank.world_size > 1:
        return Together(rank, store, os.environ, settings.sweep.parallel)
    if settings.launch.nodes_range[1] > 1:
        raise SettingsError(
            f"launch.nodes={settings.launch.nodes}: a sweep started with python stays on its machine; start one over "
            "several nodes with torchrun ... -m launcher -m"
        )
    devices = Devices.here(settings.launch.device, os.environ)
    processes = first_rank(settings.launch, rank).world_size
    return Alone(devices, devices.parallel(settings.sweep.parallel, processes), os.environ)


def _ledger(folder: Path, definition: Definition, resumes: bool) -> Ledger:
    if not resumes and (folder / NAME).exists():
        raise SettingsError(
            f"hydra.sweep.dir={folder} holds a sweep already; nothing is overwritten: give another folder, or continue "
            "that sweep with sweep.resume=true"
        )
    return Ledger.open(folder, definition)
