"""The command: Hydra on rank 0, plain data from there on, one word to the user whatever happens."""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import torch.distributed as dist

from launcher.configure.command_line import parse
from launcher.console import patience, said_that_nothing_began, say
from launcher.context import RankContext
from launcher.ending import announce, announce_first, report
from launcher.instructions import REMEMBERED, Instructions
from launcher.observe.logs import log_to
from launcher.prepare import prepare
from launcher.processes.attempts import agreed
from launcher.processes.environment import Rank
from launcher.processes.errors import FAILED, FINISHED, PREEMPTED, WRONG_SETTINGS, SettingsError, first_line
from launcher.processes.failures import Failure
from launcher.processes.group import device_of, from_rank_zero, leave, meet
from launcher.processes.signals import Preempted, Signals, Terminated
from launcher.processes.threads import threads_per_rank, usable_cores, use_threads, users_own_threads
from launcher.processes.watch import Watch
from launcher.run import start

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None, launcher: int | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line; None: that of this process.
        launcher: the process that started this one, as it was when this one began; None: as it is.

    Returns:
        The exit status.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    words = sys.argv[1:] if arguments is None else arguments
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        rank = Rank.from_environment(os.environ)
        signals = Signals(rank.rank)
        signals.listen()
        watch = Watch(rank, signals, launcher or os.getppid())
        if rank.world_size > 1 or rank.has_launcher:
            watch.start()
        with patience(f"rank {rank.rank} of {rank.world_size} waits for the others at {rank.host}:{rank.port}"):
            store = meet(rank)
            rank, attempt = agreed(rank, store)
    except SettingsError as error:
        say(f"error: {error}")
        return WRONG_SETTINGS
    except (dist.DistError, OSError) as error:
        say(f"error: rank {rank.rank} cannot meet the others at {rank.host}:{rank.port}: {first_line(error)}")
        return FAILED
    except Preempted as signal:
        return said_that_nothing_began(signal, rank)
    try:
        watch.listen_to(store, rank, attempt)
        with ExitStack() as held:
            return _take_part(words, rank, store, watch, held)
    except Preempted as signal:
        return said_that_nothing_began(signal, rank)
    finally:
        signals.ignore()
        leave(store, rank)
        watch.let_go()


def _take_part(words: list[str], rank: Rank, store: dist.Store, watch: Watch, held: ExitStack) -> int:
    key, signals = f"instructions/{rank.attempt}", watch.signals
    text = from_rank_zero(store, rank, key, lambda: prepare(words, rank, store, signals, held).to_json())
    instructions = Instructions.from_json(text)
    if instructions.exit_status is not None:
        return instructions.exit_status
    if instructions.sweeps:
        return _sweep(words, rank, store, watch)
    try:
        state = carry_out(instructions, rank, store, watch)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends here with a word
        signals.ignore()
        return report(error, Path(instructions.run_dir), rank, store, watch)
    signals.ignore()
    if state != "preempted":
        return FINISHED
    with suppress(dist.DistError):  # the launcher is gone, and restarts nothing
        store.set(REMEMBERED, Instructions(exit_status=PREEMPTED).to_json())
    return PREEMPTED


def _sweep(words: list[str], rank: Rank, store: dist.Store, watch: Watch) -> int:
    from launcher.sweep.supervise import sweep  # noqa: PLC0415 - a run does without

    try:
        status = sweep(parse(words), rank, store, watch.signals)
    except SettingsError as error:
        say(f"error: {error}")
        status = WRONG_SETTINGS
    except Terminated as error:
        say(f"{error}; its jobs were killed, and go on from their last checkpoints with the same command")
        return FAILED
    with suppress(dist.DistError):  # the launcher is gone, and restarts nothing
        if status == PREEMPTED and watch.blame_dead(Failure.of(Preempted(), rank.rank)):
            return FAILED  # torchrun asks all to end where one died, and starts them anew
        if rank.rank == 0:  # a restart by torchrun is for a sweep that did not come to its end
            store.set(REMEMBERED, Instructions(exit_status=status).to_json())
    return status


def carry_out(instructions: Instructions, rank: Rank, store: dist.Store, watch: Watch) -> str:
    """On every rank: work inside the run folder's logs on the rank's own device; returns the state at the end."""
    run_dir = Path(instructions.run_dir)
    aside = store.clone()  # the main thread may wait in its own
    watch.signals.tell_with(partial(announce_first, run_dir=run_dir, rank=rank, store=aside))
    run = instructions.settings()
    watch.tell_with(partial(announce, run_dir=run_dir, rank=rank, store=aside), run.launch.timeout_s)
    _log_to(run_dir, rank)
    for note in instructions.notes if rank.rank == 0 else ():
        log.warning("%s", note)
    own = users_own_threads(rank, os.environ)
    threads = threads_per_rank(rank, run.launch.threads_per_rank, own, usable_cores(), exact=run.batch.exact)
    if run.batch.exact and run.launch.threads_per_rank is None and own not in (None, "1") and rank.rank == 0:
        log.warning("OMP_NUM_THREADS=%s has no effect with batch.exact=true; set launch.threads_per_rank=%s", own, own)
    use_threads(threads)
    if instructions.chdir:
        os.chdir(run_dir)
    device = device_of(rank, run.launch.device)
    return start(run, RankContext(rank, store, watch.signals, watch, run_dir, device, threads, instructions.command))


def _log_to(run_dir: Path, rank: Rank) -> None:
    try:
        log_to(run_dir, rank.rank, console=rank.rank == 0)
    except OSError as error:
        raise SettingsError(
            f"hydra.run.dir={run_dir} cannot be written on {socket.gethostname()}: {error.strerror or error}; "
            "it must lie on a file system that all nodes share"
        ) from error
