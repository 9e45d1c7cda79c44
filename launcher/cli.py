"""The command: Hydra on rank 0, plain data from there on, one word to the user whatever happens."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist

from launcher.configure.command_line import parse
from launcher.configure.devices import for_devices
from launcher.configure.schema import RunConfig
from launcher.observe.logs import log_to
from launcher.observe.status import write_failure
from launcher.plan import plan_text
from launcher.processes.environment import Rank
from launcher.processes.errors import (
    FAILED,
    FINISHED,
    WRONG_SETTINGS,
    Failure,
    SettingsError,
    first_failure,
    tell_torchrun,
    told_before,
)
from launcher.processes.group import device_of, from_rank_zero, meet
from launcher.processes.signals import end_on_sigterm
from launcher.processes.spawn import processes_of, start_processes
from launcher.processes.threads import threads_per_rank, usable_cores, use_threads, users_own_threads
from launcher.run import Place, start

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Instructions:
    """What rank 0 made of the command line, for all ranks.

    Attributes:
        exit_status: for a command that is over already; None for a run.
        run: the settings as JSON.
        digest: of the settings.
        run_dir: the run folder.
        chdir: whether to work inside it.
        notes: what the user should know, said when the run starts.
    """

    exit_status: int | None = None
    run: str = ""
    digest: str = ""
    run_dir: str = ""
    chdir: bool = False
    notes: tuple[str, ...] = ()

    def settings(self) -> RunConfig:
        """The settings, checked to be those of rank 0.

        Raises:
            SettingsError: where this rank understands them otherwise, as another version of the package would.
        """
        other = "this rank reads other settings than rank 0: use the same version of evenshard everywhere"
        try:
            run = RunConfig.from_json(self.run)
        except (TypeError, KeyError) as error:
            raise SettingsError(other) from error
        if run.digest != self.digest:
            raise SettingsError(other)
        return run


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        rank = Rank.from_environment(os.environ)
    except SettingsError as error:
        _say(f"error: {error}")
        return WRONG_SETTINGS
    store = meet(rank)
    instructions = Instructions(
        **json.loads(from_rank_zero(store, rank, "instructions", lambda: json.dumps(asdict(prepare(words, rank)))))
    )
    if instructions.exit_status is not None:
        return instructions.exit_status
    try:
        carry_out(instructions, rank, store)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends here with a word
        return report(error, instructions, rank, store)
    return FINISHED


def prepare(words: list[str], rank: Rank) -> Instructions:
    """On rank 0: read the command line, compose the settings, make the run folder."""
    try:
        return _prepare(words, rank)
    except SettingsError as error:
        _say(f"error: {error}")
        return Instructions(exit_status=WRONG_SETTINGS)
    except Exception:  # noqa: BLE001 - the other ranks wait for an answer
        _say(traceback.format_exc())
        return Instructions(exit_status=FAILED)


def _prepare(words: list[str], rank: Rank) -> Instructions:
    from launcher.configure import compose  # noqa: PLC0415 - Hydra is needed on rank 0 alone
    from launcher.configure.help import help_text  # noqa: PLC0415
    from launcher.configure.run_folder import make_run_folder  # noqa: PLC0415

    line = parse(words)
    if line.help:
        return _answer(help_text())
    compose.check_syntax(line.overrides)
    if line.show:
        return _answer(compose.show_config(line))
    composed = compose.compose_run(line)
    world_size = processes_of(composed.run.launch.processes, rank)
    run, notes = for_devices(composed.run, world_size)
    if run.mode == "plan":
        return _answer(plan_text(run, world_size, composed.run_dir, notes))
    if world_size != rank.world_size:
        start_processes(world_size, words)
    folder = make_run_folder(composed.run_dir, composed.run_dir_is_new)
    if folder != composed.run_dir:
        run, notes = for_devices(compose.compose_run(line, folder).run, world_size)
    (folder / "config.yaml").write_text(compose.to_yaml(run), encoding="utf-8")
    return Instructions(None, run.to_json(), run.digest, str(folder), composed.chdir, tuple(notes))


def carry_out(instructions: Instructions, rank: Rank, store: dist.Store) -> None:
    """On every rank: work inside the run folder's logs on the rank's own device."""
    end_on_sigterm()
    run = instructions.settings()
    run_dir = Path(instructions.run_dir)
    log_to(run_dir, rank.rank, console=rank.rank == 0)
    for note in instructions.notes if rank.rank == 0 else ():
        log.warning("%s", note)
    threads = threads_per_rank(rank, run.launch.threads_per_rank, users_own_threads(rank, os.environ), usable_cores())
    use_threads(threads)
    if instructions.chdir:
        os.chdir(run_dir)
    start(run, Place(rank, store, run_dir, device_of(rank, run.launch.device), threads))


def report(error: BaseException, instructions: Instructions, rank: Rank, store: dist.Store) -> int:
    """Tell the user what ended the run, if this rank was the first to fail; returns the exit status."""
    mine = Failure.of(error, rank.rank)
    log.error("%s", mine.traceback, extra={"file_only": True})
    try:
        first = first_failure(store, mine, rank.attempt)
    except dist.DistError:
        return FAILED  # the store went down with another rank, which has told
    if first == mine:
        text = (
            f"error: {mine.message}" if isinstance(error, SettingsError) else f"{mine.traceback}error: {mine.headline}"
        )
        if not told_before(store, text):
            _say(text)
        tell_torchrun(mine)
        write_failure(Path(instructions.run_dir), mine.rank, mine.type, mine.message)
    return WRONG_SETTINGS if first.type == SettingsError.__name__ else FAILED


def _answer(text: str) -> Instructions:
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()
    return Instructions(exit_status=FINISHED)


def _say(text: str) -> None:
    sys.stderr.write(text.rstrip() + "\n")
    sys.stderr.flush()
