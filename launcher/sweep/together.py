"""A sweep by processes that torchrun or Slurm started: each starts one rank of every job; rank 0 says when."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from launcher.processes import errors
from launcher.processes.environment import Rank, World, inherited
from launcher.processes.errors import SettingsError
from launcher.processes.forked import NOT_STARTED
from launcher.processes.group import wish_key
from launcher.processes.network import address_towards, is_loopback
from launcher.processes.signals import Signals
from launcher.processes.store import new_store
from launcher.processes.threads import VARIABLE, users_own_threads
from launcher.sweep.crew import Team
from launcher.sweep.halt import LauncherGoneError
from launcher.sweep.jobs import Job
from launcher.sweep.ranks import LAST_S, Ranks, start_rank

LOOK_S = 0.05
ALL = ("all",)


@dataclass(frozen=True)
class Word:
    """What rank 0 says to the others, in the order in which it says it.

    Attributes:
        start: a rank of this world is to be started, with the settings of ``order``.
        order: the file.
        tell: the signal to send to it.
        close: the job is over.
    """

    start: dict[str, Any] | None = None
    order: str = ""
    tell: int = 0
    close: bool = False


@dataclass
class Channel:
    """The words of rank 0, and the exit statuses that come back.

    Attributes:
        store: of the processes of the sweep.
        name: tells this channel from that of before an elastic restart.
        said: words said or heard so far.
        starts: jobs started so far.
    """

    store: dist.Store
    name: str
    said: int = 0
    starts: int = 0

    def say(self, word: Word) -> None:
        """On rank 0."""
        self.starts += word.start is not None
        self.store.set(f"{self.name}/{self.said}", json.dumps(asdict(word)))
        self.said += 1

    def hear(self) -> Word | None:
        """On the others: the next word, if there is one."""
        key = f"{self.name}/{self.said}"
        if not self.store.check([key]):
            return None
        self.said += 1
        word = Word(**json.loads(self.store.get(key)))
        self.starts += word.start is not None
        return word

    def report(self, rank: int, status: int) -> None:
        """On the others: how the rank of the job that was started last has ended."""
        self.store.set(self._key(rank), str(status))

    def reported(self, rank: int) -> int | None:
        """On rank 0: how a rank has ended, if it has."""
        key = self._key(rank)
        return int(self.store.get(key)) if self.store.check([key]) else None

    def _key(self, rank: int) -> str:
        return f"{self.name}/{self.starts}/ended/{rank}"


class Together:
    """Rank 0 has every process start one rank of each job; jobs run one at a time, on all devices.

    Args:
        rank: this process, rank 0.
        store: of the processes of the sweep.
        environment: of this process.
        asked: ``sweep.parallel``.

    Raises:
        SettingsError: where several jobs at a time are asked for.
    """

    parallel = 1
    devices = "devices"

    def __init__(self, rank: Rank, store: dist.Store, environment: Mapping[str, str], asked: int | None) -> None:
        if asked not in (None, 1):
            raise SettingsError(
                f"sweep.parallel={asked}: under {rank.started_by} each job takes all {rank.world_size} ranks, one job "
                "at a time; for several at a time start the sweep with python -m launcher -m launch.processes=N"
            )
        self._rank, self._free = rank, True
        self._environment = own_environment(rank, environment)
        self._host = "127.0.0.1" if rank.one_node else address_of(rank)
        self._channel = Channel(store, channel_of(rank))

    def check(self, world_size: int) -> None:
        """Every job has all ranks; another number that is asked for is refused elsewhere."""

    def take(self, job: Job) -> tuple[str, ...] | None:
        """All devices, for one job at a time."""
        del job
        taken, self._free = self._free, False
        return ALL if taken else None

    def give_back(self, devices: tuple[str, ...]) -> None:
        """They are free for the next job."""
        del devices
        self._free = True

    def start(self, job: Job, order: Path, devices: tuple[str, ...], attempt: int) -> Team:
        """Start this process's rank, and have the others start theirs."""
        del devices
        store = new_store(everywhere=not self._rank.one_node)
        world = World(job.world_size, self._host, store.port, attempt, job.run.launch.max_restarts)
        try:
            self._channel.say(Word(start=asdict(world), order=str(order)))
        except dist.DistError as error:  # torchrun keeps the store
            raise LauncherGoneError from error
        try:
            own = own_rank(self._rank, world, order, self._environment, store)
        except NOT_STARTED:
            with suppress(dist.DistError):
                self._channel.say(Word(close=True))
            raise
        return Everyone(self._channel, job.world_size, own)


@dataclass
class Everyone:
    """The ranks of a job, one of which this process started."""

    channel: Channel
    size: int
    own: Ranks
    ended: dict[int, int] = field(default_factory=dict)
    alone: bool = False

    def statuses(self) -> dict[int, int]:
        """Exit statuses of the ranks that have ended; of those that nobody can report any more, that of the own one."""
        own = self.own.statuses()
        self.ended.update(own)
        if not self.alone:
            self._hear()
        if self.alone:
            self.ended.update({rank: status for status in own.values() for rank in range(self.size)})
        return self.ended

    def _hear(self) -> None:
        """What the others report, as long as they can; each time that a store is asked that is gone, it says so."""
        try:
            for rank in range(self.size):
                status = None if rank in self.ended else self.channel.reported(rank)
                if status is not None:
                    self.ended[rank] = status
        except dist.DistError:  # who keeps the store is gone, after which all of them keep a checkpoint and end
            self.alone = True

    def tell(self, number: int) -> None:
        """Send a signal to the ranks that run."""
        self.own.tell(number)
        with suppress(dist.DistError):
            self.channel.say(Word(tell=number))

    def close(self) -> None:
        """Leave no process, and no store."""
        with suppress(dist.DistError):
            self.channel.say(Word(close=True))
        self.own.close()


def follow(rank: Rank, store: dist.Store, environment: Mapping[str, str], signals: Signals) -> int:
    """On the other ranks: do as rank 0 says until the sweep is over; returns its exit status."""
    channel, own = Channel(store, channel_of(rank)), own_environment(rank, environment)
    ranks, reported, wished, over = Ranks(None, {}), False, False, f"{channel_of(rank)}/over"
    try:
        while not store.check([over]):
            word = channel.hear()
            if word is None:
                time.sleep(LOOK_S)
            elif word.start is not None:
                ranks, reported = _own_rank_if_possible(rank, word, own), False
                if not ranks.processes:
                    channel.report(rank.rank, errors.FAILED)
            elif word.close:
                ranks.close()
            else:
                ranks.tell(word.tell)
            for status in () if reported else ranks.statuses().values():
                channel.report(rank.rank, status)
                reported = True
            if signals.wish and not wished:
                store.set(wish_key(rank.attempt), json.dumps(asdict(signals.wish)))
                wished = True
        return int(store.get(over))
    except dist.DistError:  # who keeps the store is gone, and nobody says any more what to do
        ranks.tell(signal.SIGTERM)
        ranks.wait(LAST_S)
        return errors.FAILED
    finally:
        ranks.close()


def _own_rank_if_possible(rank: Rank, word: Word, environment: Mapping[str, str]) -> Ranks:
    """The one that rank 0 asked for; none where it cannot be started."""
    try:
        return own_rank(rank, World(**(word.start or {})), Path(word.order), environment, None)
    except NOT_STARTED:
        return Ranks(None, {})


def end_of_sweep(store: dist.Store, rank: Rank, exit_status: int) -> None:
    """On rank 0: let the others go."""
    if rank.world_size > 1:
        with suppress(dist.DistError):
            store.set(f"{channel_of(rank)}/over", str(exit_status))


def channel_of(rank: Rank) -> str:
    """The name under which rank 0 talks to the others."""
    return f"sweep/{rank.attempt}"


def own_environment(rank: Rank, environment: Mapping[str, str]) -> dict[str, str]:
    """What a job's rank takes over from this process; the number of threads only where it is the user's own."""
    own = users_own_threads(rank, environment)
    kept = {name: value for name, value in inherited(environment).items() if name != VARIABLE}
    return {**kept, **({VARIABLE: own} if own else {})}


def own_rank(
    rank: Rank, world: World, order: Path, environment: Mapping[str, str], store: dist.TCPStore | None
) -> Ranks:
    """Start the one rank of a job that is this process's to start."""
    variables = world.variables(rank.rank, rank.local_rank, rank.local_world_size)
    return Ranks(store, {rank.rank: start_rank(order, {**environment, **variables})})


def address_of(rank: Rank) -> str:
    """The address of this machine for the other nodes: where the ranks meet is on it, or is reached from there."""
    found = address_towards(rank.host, rank.port)
    return rank.host if is_loopback(found) else found
