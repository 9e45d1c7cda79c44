"""What happens when: faults and starts, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

KILL, TERM, USR1 = "SIGKILL", "SIGTERM", "SIGUSR1"
STOP, FULL, FLIP, DELETE = "SIGSTOP/SIGCONT", "disk full", "bit flipped", "newest deleted"
ENDING, DAMAGE = (KILL, TERM, USR1), (FLIP, DELETE)
KINDS = (*ENDING, STOP, FULL, *DAMAGE)
EARLY = 0.15
"""The part of faults that come while a run starts, of those that end one."""
LATEST_S, STARTING_S = 0.2, 6.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: one of ``KINDS``.
        step: that the run has reached when it does.
        early: whether it comes while the run starts, if it is the first after a restart.
        down: for damage, whether it comes when the run is down the next time.
        victim: in [0, 1), which of the processes it hits: the launcher or one of the ranks.
        delay_s: seconds after the step is heard of, or a part of ``STARTING_S`` where it comes early.
        hold_s: seconds that a process is stopped or the disk is full.
        place: in [0, 1), of the bit that is flipped; of the disk, whether it has no room at all.
    """

    kind: str
    step: int
    early: bool
    down: bool
    victim: float
    delay_s: float
    hold_s: float
    place: float


@dataclass(frozen=True)
class Start:
    """How the run is started once.

    Attributes:
        world: ranks.
        by_torchrun: by it, or by the command itself.
        restarts: that the launcher may do by itself.
        warns: ``checkpoint.on_error=warn`` rather than stop.
    """

    world: int
    by_torchrun: bool
    restarts: int
    warns: bool

    def __str__(self) -> str:
        launcher, on_error = "torchrun" if self.by_torchrun else "python", "warn" if self.warns else "stop"
        return f"{self.world} by {launcher}, max_restarts={self.restarts}, on_error={on_error}"


def draw_faults(seed: int, count: int, gap: tuple[int, int]) -> list[Fault]:
    """``count`` faults, each kind as often as any other, from ``gap[0]`` to ``gap[1]`` steps apart."""
    stream = random.Random(f"{seed} faults")
    bags = [stream.sample(KINDS, len(KINDS)) for _ in range(-(-count // len(KINDS)))]
    faults, step = [], 0
    for kind in [kind for bag in bags for kind in bag][:count]:
        step += stream.randint(*gap)
        faults.append(
            Fault(
                kind=kind,
                step=step,
                early=kind in ENDING and stream.random() < EARLY,
                down=kind in DAMAGE and stream.random() < 0.5,
                victim=stream.random(),
                delay_s=stream.uniform(0, LATEST_S),
                hold_s=stream.uniform(0.5, 1.5),
                place=stream.random(),
            )
        )
    last = max((number for number, fault in enumerate(faults) if fault.kind in ENDING), default=0)
    return [replace(fault, down=fault.down and number < last) for number, fault in enumerate(faults)]


def draw_starts(seed: int, most: int) -> Iterator[Start]:
    """Starts without end, on 1 to ``most`` ranks."""
    stream = random.Random(f"{seed} starts")
    while True:
        yield Start(
            world=stream.randint(1, most),
            by_torchrun=stream.random() < 1 / 3,
            restarts=stream.choice((0, 0, 3)),
            warns=stream.random() < 0.5,
        )
