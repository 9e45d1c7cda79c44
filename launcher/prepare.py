"""What rank 0 makes of the command line: an answer, processes of its own, or the instructions of a run."""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.configure.command_line import CommandLine, parse
from launcher.configure.devices import for_devices
from launcher.configure.schema import RunConfig
from launcher.configure.start import first_rank, launch_of, starts_ranks, with_words
from launcher.console import PATIENCE_S, patience, said_that_nothing_began, say
from launcher.instructions import ORDERS, REMEMBERED, Instructions, remembered
from launcher.observe.status import Status, write_status
from launcher.plan import plan_here
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, FINISHED, WRONG_SETTINGS, PlainError, SettingsError
from launcher.processes.signals import Preempted, Signals


def prepare(words: list[str], rank: Rank, store: dist.Store, signals: Signals, held: ExitStack) -> Instructions:
    """On rank 0: what is to be done; after an elastic restart, what was found out the first time.

    The run folder is this rank's own until ``held`` is closed.
    """
    try:
        before = remembered(rank, store)
        instructions = _again(before, held) if before else _prepare(words, rank, signals, held)
    except SettingsError as error:
        say(f"error: {error}")
        instructions = Instructions(exit_status=WRONG_SETTINGS)
    except Preempted as signal:
        instructions = Instructions(exit_status=said_that_nothing_began(signal, rank))
    except PlainError as error:
        say(f"error: {error}")
        return Instructions(exit_status=FAILED)
    except (Exception, SystemExit):  # noqa: BLE001 - the other ranks wait for an answer
        say(traceback.format_exc())
        return Instructions(exit_status=FAILED)
    for key in (REMEMBERED,) if instructions.exit_status is not None else (REMEMBERED, ORDERS):
        store.set(key, instructions.to_json())
    return instructions


def _again(instructions: Instructions, held: ExitStack) -> Instructions:
    from launcher.configure.run_folder import hold  # noqa: PLC0415

    if instructions.exit_status is None and not instructions.sweeps:
        hold(Path(instructions.run_dir), held, PATIENCE_S)
    return instructions


def _prepare(words: list[str], rank: Rank, signals: Signals, held: ExitStack) -> Instructions:
    line = parse(words)
    text = _told_at_once(line)
    if text is not None:
        return _answer(text)
    if line.job:
        return _ordered(line, words, rank, signals, held)
    return Instructions(sweeps=True) if line.multirun else _of_run(line, words, rank, signals, held)


def _of_run(line: CommandLine, words: list[str], rank: Rank, signals: Signals, held: ExitStack) -> Instructions:
    from launcher.configure.compose import compose_run  # noqa: PLC0415 - the other ranks compose nothing
    from launcher.configure.given import Given  # noqa: PLC0415
    from launcher.configure.run_folder import claim_run_folder  # noqa: PLC0415

    composed = compose_run(line)
    if composed.run.mode == "inspect":
        return _answer(_told_of(composed.run_dir))
    if composed.run.launch.engine == "slurm":
        from launcher.slurm.run import as_a_job  # noqa: PLC0415 - few submit anything

        return _answer(as_a_job(line, composed, rank))
    first = first_rank(composed.run.launch, rank)
    run, notes = for_devices(composed.run, first.world_size)
    if run.mode == "plan":
        told = [*line.notes, *notes]
        return _answer(plan_here(run, first, composed.run_dir, composed.run_dir_is_new, told))
    if starts_ranks(run.launch, rank):
        return Instructions(exit_status=_start(run, words, signals))
    folder, holds_a_run = claim_run_folder(composed.run_dir, composed.run_dir_is_new, _continues(run), held)
    if folder != composed.run_dir:
        run, notes = for_devices(compose_run(line, folder).run, first.world_size)
    command = Given(str(Path.cwd()), line).to_json()
    if not holds_a_run:
        _begin(run, folder, command, first)
    notes = [*line.notes, *notes]
    return Instructions(None, run.to_json(), run.digest, str(folder), composed.chdir, notes, command=command)


def _start(run: RunConfig, words: list[str], signals: Signals) -> int:
    from launcher.processes.spawn import start_processes  # noqa: PLC0415 - slow to import, and ranks start none

    return start_processes(launch_of(run.launch), words, signals, patience)


def _continues(run: RunConfig) -> bool:
    return run.mode == "train" and run.checkpoint.resume == "auto"


def _begin(run: RunConfig, folder: Path, command: str, rank: Rank) -> None:
    from launcher.configure.given import NAME  # noqa: PLC0415
    from launcher.configure.run_folder import CONFIG, to_yaml  # noqa: PLC0415

    try:
        (folder / NAME).write_text(command, encoding="utf-8")
        (folder / CONFIG).write_text(to_yaml(run), encoding="utf-8")
        write_status(folder, Status(world_size=rank.world_size, restarts=rank.attempt))
    except OSError as error:
        for name in (CONFIG, NAME):  # the next start begins anew
            (folder / name).unlink(missing_ok=True)
        raise SettingsError(f"hydra.run.dir={folder} cannot be written: {error.strerror or error}") from error


def _ordered(line: CommandLine, words: list[str], rank: Rank, signals: Signals, held: ExitStack) -> Instructions:
    """What the settings in a file want this process to do, which a sweep or a job of Slurm started."""
    from launcher.configure.run_folder import claim_run_folder  # noqa: PLC0415
    from launcher.sweep.order import Order  # noqa: PLC0415

    order = Order.read(Path(str(line.job)))
    asked = RunConfig.from_json(order.run)
    asked = replace(asked, launch=with_words(asked.launch, line.overrides))
    first = first_rank(asked.launch, rank)
    run, notes = for_devices(asked, first.world_size)
    if starts_ranks(run.launch, rank):
        return Instructions(exit_status=_start(run, words, signals))
    _, holds_a_run = claim_run_folder(Path(order.run_dir), False, _continues(run), held, PATIENCE_S)
    if not holds_a_run:
        _begin(run, Path(order.run_dir), order.command, first)
    told = [*dict.fromkeys([*order.notes, *notes])]
    return Instructions(None, run.to_json(), run.digest, order.run_dir, order.chdir, told, command=order.command)


def _told_at_once(line: CommandLine) -> str | None:
    """What a command line asks for that is no run."""
    from launcher.configure.compose import show_config  # noqa: PLC0415
    from launcher.configure.explain import check_syntax  # noqa: PLC0415
    from launcher.configure.help import help_text  # noqa: PLC0415

    if line.version:
        return f"evenshard {_version()}, torch {torch.__version__}"
    if line.help:
        return help_text(line.config_dir)
    if line.inspect:
        return _told_of(Path(line.inspect).absolute())
    if line.report:
        return _reported(Path(line.report).absolute())
    check_syntax(line.overrides)
    return show_config(line) if line.show else None


def _told_of(run_dir: Path) -> str:
    from launcher.inspection import inspect_text  # noqa: PLC0415

    return inspect_text(run_dir)


def _reported(run_dir: Path) -> str:
    from launcher.observe.report import NAME, write_report  # noqa: PLC0415
    from launcher.observe.status import NAME as STATUS  # noqa: PLC0415

    if not (run_dir / STATUS).exists():
        raise SettingsError(f"{run_dir} is no run folder: it has no {STATUS}")
    if write_report(run_dir) is None:
        raise SettingsError(f"{run_dir / NAME} cannot be written")
    return f"report           {run_dir / NAME}"


def _version() -> str:
    try:
        return version("evenshard")
    except PackageNotFoundError:
        return "from a clone"


def _answer(text: str) -> Instructions:
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()
    return Instructions(exit_status=FINISHED)
