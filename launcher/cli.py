"""The command: Hydra on rank 0, plain data from there on, one word to the user whatever happens."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.configure.command_line import CommandLine, parse
from launcher.configure.devices import for_devices
from launcher.configure.schema import RunConfig
from launcher.configure.start import first_rank, launch_of, starts_ranks, with_words
from launcher.context import RankContext
from launcher.observe.logs import log_to
from launcher.observe.status import Status, write_failure, write_preempted, write_status
from launcher.plan import plan_here
from launcher.processes.attempts import agreed
from launcher.processes.early import nothing_began
from launcher.processes.environment import Rank
from launcher.processes.errors import (
    FAILED,
    FINISHED,
    NEVER_RETRIED,
    PREEMPTED,
    WRONG_SETTINGS,
    PlainError,
    SettingsError,
    first_line,
)
from launcher.processes.failures import (
    Failure,
    did_steps,
    first_failure,
    gone_with_the_store,
    is_consequence,
    note_steps,
    printable,
    tell_torchrun,
    told_before,
)
from launcher.processes.group import device_of, from_rank_zero, leave, meet
from launcher.processes.origin import users_place
from launcher.processes.signals import Preempted, Signals, Terminated
from launcher.processes.threads import threads_per_rank, usable_cores, use_threads, users_own_threads
from launcher.processes.watch import Watch
from launcher.run import start

log = logging.getLogger(__name__)

REMEMBERED, ORDERS, RESTARTS = "remembered", "orders", "restarts"
PATIENCE_S = 20.0
SECOND_S = 1.0


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
        sweeps: whether it is a sweep, of which every rank has the command line.
        command: what the user typed, as the run folder keeps it.
    """

    exit_status: int | None = None
    run: str = ""
    digest: str = ""
    run_dir: str = ""
    chdir: bool = False
    notes: list[str] = field(default_factory=list)
    sweeps: bool = False
    command: str = ""

    def to_json(self) -> str:
        """The form in which they travel."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Instructions:
        """The instructions that ``to_json`` wrote."""
        return cls(**json.loads(text))

    def settings(self) -> RunConfig:
        """The settings, checked to be those of rank 0.

        Raises:
            SettingsError: where this rank understands them otherwise, as another version of the package would.
        """
        other, remedy = "this rank reads other settings than rank 0", "use the same version of evenshard everywhere"
        try:
            run = RunConfig.from_json(self.run)
        except (TypeError, KeyError) as error:
            raise SettingsError(f"{other}: {first_line(error)}; {remedy}") from error
        if run.digest != self.digest:
            raise SettingsError(f"{other}: their SHA-256 is {run.digest} here, {self.digest} there; {remedy}")
        return run


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
        with _patience(f"rank {rank.rank} of {rank.world_size} waits for the others at {rank.host}:{rank.port}"):
            store = meet(rank)
            rank, attempt = agreed(rank, store)
    except SettingsError as error:
        _say(f"error: {error}")
        return WRONG_SETTINGS
    except (dist.DistError, OSError) as error:
        _say(f"error: rank {rank.rank} cannot meet the others at {rank.host}:{rank.port}: {first_line(error)}")
        return FAILED
    except Preempted as signal:
        return _nothing_began(signal, rank)
    try:
        watch.listen_to(store, rank, attempt)
        with ExitStack() as held:
            return _take_part(words, rank, store, watch, held)
    except Preempted as signal:
        return _nothing_began(signal, rank)
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
        _say(f"error: {error}")
        status = WRONG_SETTINGS
    except Terminated as error:
        _say(f"{error}; its jobs were killed, and go on from their last checkpoints with the same command")
        return FAILED
    with suppress(dist.DistError):  # the launcher is gone, and restarts nothing
        if status == PREEMPTED and watch.blame_dead(Failure.of(Preempted(), rank.rank)):
            return FAILED  # torchrun asks all to end where one died, and starts them anew
        if rank.rank == 0:  # a restart by torchrun is for a sweep that did not come to its end
            store.set(REMEMBERED, Instructions(exit_status=status).to_json())
    return status


def prepare(words: list[str], rank: Rank, store: dist.Store, signals: Signals, held: ExitStack) -> Instructions:
    """On rank 0: what is to be done; after an elastic restart, what was found out the first time.

    The run folder is this rank's own until ``held`` is closed.
    """
    try:
        before = remembered(rank, store)
        instructions = _again(before, held) if before else _prepare(words, rank, signals, held)
    except SettingsError as error:
        _say(f"error: {error}")
        instructions = Instructions(exit_status=WRONG_SETTINGS)
    except Preempted as signal:
        instructions = Instructions(exit_status=_nothing_began(signal, rank))
    except PlainError as error:
        _say(f"error: {error}")
        return Instructions(exit_status=FAILED)
    except (Exception, SystemExit):  # noqa: BLE001 - the other ranks wait for an answer
        _say(traceback.format_exc())
        return Instructions(exit_status=FAILED)
    for key in (REMEMBERED,) if instructions.exit_status is not None else (REMEMBERED, ORDERS):
        store.set(key, instructions.to_json())
    return instructions


def remembered(rank: Rank, store: dist.Store) -> Instructions | None:
    """On rank 0: what was found out before its agent started the ranks again; None: nothing.

    Ranks that were stopped for other nodes to take part were not preempted: their agent counted no restart.
    """
    before = store.get(RESTARTS) if store.check([RESTARTS]) else b""
    store.set(RESTARTS, str(rank.restarts))
    if not store.check([REMEMBERED]):
        return None
    found = Instructions.from_json(store.get(REMEMBERED).decode())
    if found.exit_status != PREEMPTED or before != str(rank.restarts).encode():
        return found
    return Instructions.from_json(store.get(ORDERS).decode()) if store.check([ORDERS]) else None


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

    return start_processes(launch_of(run.launch), words, signals, _patience)


def _continues(run: RunConfig) -> bool:
    return run.mode == "train" and run.checkpoint.resume == "auto"


def _begin(run: RunConfig, folder: Path, command: str, rank: Rank) -> None:
    from launcher.configure.given import NAME  # noqa: PLC0415
    from launcher.configure.run_folder import CONFIG, to_yaml  # noqa: PLC0415

    (folder / NAME).write_text(command, encoding="utf-8")
    (folder / CONFIG).write_text(to_yaml(run), encoding="utf-8")
    write_status(folder, Status(world_size=rank.world_size, restarts=rank.attempt))


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
    check_syntax(line.overrides)
    return show_config(line) if line.show else None


def _told_of(run_dir: Path) -> str:
    from launcher.inspection import inspect_text  # noqa: PLC0415

    return inspect_text(run_dir)


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


def report(error: BaseException, run_dir: Path, rank: Rank, store: dist.Store, watch: Watch) -> int:
    """Tell the user what ended the run, if this rank was the first to fail; returns the exit status."""
    mine = Failure.of(error, rank.rank)
    log.error("%s", mine.traceback, extra={"file_only": True})
    try:
        if is_consequence(error) and rank.world_size > 1:
            mine = watch.blame(mine)
        elif isinstance(error, Preempted):  # as launchers do for a rank that died
            mine = watch.blame_dead(mine) or mine
        first = first_failure(store, mine, rank.attempt)
        watch.kill(first)
        if first.by == rank.rank and _is_hopeless(error, first, store, watch):
            store.set(REMEMBERED, Instructions(exit_status=first.exit_status).to_json())
    except dist.DistError:
        first = gone_with_the_store(rank) if is_consequence(error) else mine
        announce(first, run_dir, rank, None)
        return first.exit_status
    if announce(first, run_dir, rank, store) and error.__cause__ is not None and users_place(error.__cause__):
        _say(f"       the traceback is in {run_dir}/rank_{rank.rank}.log")
    if first.by != rank.rank and rank.store_outlives_ranks:
        time.sleep(SECOND_S)  # torchrun's table calls the root cause what it sees end first
    return first.exit_status


def _is_hopeless(error: BaseException, first: Failure, store: dist.Store, watch: Watch) -> bool:
    """Whether a restart would end in the same way, or is not wanted."""
    if watch.step:
        note_steps(store)
    at_once = not is_consequence(error) and not did_steps(store)
    return at_once or first.exit_status in NEVER_RETRIED or isinstance(error, KeyboardInterrupt)


def announce_first(error: BaseException, run_dir: Path, rank: Rank, store: dist.Store) -> None:
    """Announce what this rank ends of, unless another failed before."""
    first = Failure.of(error, rank.rank)
    with suppress(dist.DistError):  # whoever kept the store is gone
        first = first_failure(store, first, rank.attempt)
    announce(first, run_dir, rank, store)


def announce(first: Failure, run_dir: Path, rank: Rank, store: dist.Store | None) -> bool:
    """Leave what ended the run where it is looked for; tell the user if that is for this rank to do, and not done.

    Without a store the ranks of a node cannot agree on who tells, and the first of them does.
    """
    with suppress(OSError):
        if first.by == rank.rank:
            tell_torchrun(first)
    untold = ""
    try:
        if rank.rank in (0, first.by) and first.exit_status == PREEMPTED:
            write_preempted(run_dir)
        elif rank.rank in (0, first.by):
            write_failure(run_dir, first.rank, first.type, first.message)
    except OSError as error:  # the folder is full or gone
        if run_dir.is_dir():
            untold = f"\n       {run_dir}/status.json cannot be written ({error.strerror}) and tells what was before"
    tells = first.by == rank.rank and (store is not None or rank.local_rank == 0)
    with suppress(dist.DistError):
        tells = tells and not (store and told_before(store, f"{first.type}: {first.message}"))
    if tells:
        _say(first.words + untold)
    return tells


def _log_to(run_dir: Path, rank: Rank) -> None:
    try:
        log_to(run_dir, rank.rank, console=rank.rank == 0)
    except OSError as error:
        raise SettingsError(
            f"hydra.run.dir={run_dir} cannot be written on {socket.gethostname()}: {error.strerror or error}; "
            "it must lie on a file system that all nodes share"
        ) from error


@contextmanager
def _patience(text: str) -> Iterator[None]:
    """Say what is waited for, if it takes long."""
    timer = threading.Timer(PATIENCE_S, _say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _version() -> str:
    try:
        return version("evenshard")
    except PackageNotFoundError:
        return "from a clone"


def _nothing_began(signal: Preempted, rank: Rank) -> int:
    nothing_began(str(signal), rank.rank)
    return PREEMPTED


def _answer(text: str) -> Instructions:
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()
    return Instructions(exit_status=FINISHED)


def _say(text: str) -> None:
    with suppress(OSError):  # nobody reads any more
        sys.stderr.write(printable(text).rstrip() + "\n")
        sys.stderr.flush()
