"""What checkpoints cost: training ResNet-18 on a CPU with checkpoint.every_steps=50, and without.

    python tests/benchmarks/checkpoint.py [--rounds 7] [--every 50] [--rows 128] [--threads 2]

The contenders train copies of one model by the same optimizer on the same rows in one process and take turns, each
round in another order. A turn has so many steps; one checkpoint is kept after the first of them, so that what is
written beside training takes its share of the others, and by the launcher one more halfway, as it does beside training.
Ratios are medians over the rounds of a turn beside the turn without checkpoints in the same round, with their
quartiles: of its time, and of the CPU time of the process, which other work on the machine disturbs less and which
counts what is done beside training in full. Held up is the time for which training stood still, and the CPU time
meanwhile: where nothing is written beside training, all that a save takes.

    ours            the keeper of the launcher: snapshot, hashes, fsync, rename; two generations stay
    ours, waiting   the same with checkpoint.background=false
    torch.save      on the spot, without hashes and fsync
    DCP async       torch.distributed.checkpoint.async_save

The exit status is 1 where two saves of ours take more than 3 % of the CPU time of the turn without checkpoints.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher.checkpoints.writer import Writer
from launcher.data.memory import InMemory
from launcher.models.resnet import resnet18
from launcher.observe.observer import Done, Observer
from launcher.processes.threads import usable_cores
from launcher.testing import simulate
from launcher.training.cadence import Cadence
from launcher.training.compute import Compute
from launcher.training.interval import Interval
from launcher.training.keep import Keeper
from launcher.training.progress import Progress
from launcher.training.reduction import Averaged
from launcher.training.step import MicroBatch, Stepper, by_step
from launcher.training.task import Supervised
from samplers import FixedGlobalBatchSampler, Sequential

MOST = 0.03
SAVES = 2
"""In so many steps, where they are written beside training."""
NONE, OURS, WAITING, ON_THE_SPOT, DCP = "none", "ours", "ours, waiting", "torch.save", "DCP async"
CPU = torch.device("cpu")

Save = Callable[[int], None]


@dataclass(frozen=True)
class Turn:
    """Seconds of a turn.

    Attributes:
        wall: by the clock.
        cpu: of all threads.
        held_up: for which training stood still.
        cpu_held_up: of all threads meanwhile.
    """

    wall: float
    cpu: float
    held_up: float
    cpu_held_up: float


HELD_UP, CPU_HELD_UP = attrgetter("held_up"), attrgetter("cpu_held_up")
Times = dict[str, list[Turn]]


@dataclass(frozen=True)
class Contender:
    """A way to keep checkpoints.

    Attributes:
        stepper: trains a model of its own.
        save: keeps the run after a step.
        settle: waits for what is being written.
        halves: whether one more is kept halfway.
    """

    stepper: Stepper
    save: Save
    settle: Callable[[], object] = field(default=lambda: None)
    halves: bool = False


def stepper_of(model: nn.Module) -> Stepper:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)
    task = Supervised(nn.CrossEntropyLoss(reduction="none"))
    return Stepper(model, task, optimizer, None, Compute.of("fp32", CPU), Averaged(model))


def state_of(stepper: Stepper) -> dict[str, Any]:
    return {"model": stepper.model.state_dict(), "optimizer": stepper.optimizer.state_dict()}


def ours(folder: Path, stepper: Stepper, background: bool) -> Contender:
    about = {"world_size": 1, "optimizer": {}, "scheduler": {}, "identity": {}, "settings": {}}
    sampler = FixedGlobalBatchSampler(Sequential(128), 64, 0, 1)
    cadence, writer = Cadence(background=background), Writer(background)
    keeper = Keeper(
        folder, 2, cadence, stepper.model, stepper, {}, sampler, Observer(), about, writer, "stop", Interval()
    )
    return Contender(stepper, lambda step: keeper.keep(Progress(Done(step))), keeper.settle, halves=background)


def on_the_spot(folder: Path, stepper: Stepper) -> Contender:
    folder.mkdir()

    def save(step: int) -> None:
        torch.save(state_of(stepper), folder / f"{step % 2}.pt")

    return Contender(stepper, save)


def dcp_async(folder: Path, stepper: Stepper) -> Contender:
    pending: list[Any] = []

    def settle() -> None:
        while pending:
            pending.pop().result()

    def save(step: int) -> None:
        settle()
        pending.append(dcp.async_save(state_of(stepper), checkpoint_id=folder / str(step % 2)))

    return Contender(stepper, save, settle)


def contenders(folder: Path) -> dict[str, Contender]:
    torch.manual_seed(0)
    model = resnet18()
    of = {name: stepper_of(deepcopy(model)) for name in (NONE, OURS, WAITING, ON_THE_SPOT, DCP)}
    return {
        NONE: Contender(of[NONE], lambda _: None),
        OURS: ours(folder / "ours", of[OURS], background=True),
        WAITING: ours(folder / "waiting", of[WAITING], background=False),
        ON_THE_SPOT: on_the_spot(folder / "spot", of[ON_THE_SPOT]),
        DCP: dcp_async(folder / "dcp", of[DCP]),
    }


def micro_batches(rows: int) -> list[list[MicroBatch]]:
    """Two steps of random images of 32 pixels."""
    torch.manual_seed(1)
    data = InMemory(torch.rand(2 * rows, 3, 32, 32), torch.randint(10, (2 * rows,)))
    sampler = FixedGlobalBatchSampler(Sequential(2 * rows), rows, 0, 1)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate_fn)
    return [list(step) for step in by_step(loader, sampler)]


def take_turn(contender: Contender, batches: list[list[MicroBatch]], every: int, number: int) -> Turn:
    """Take so many steps, and keep the run after the first."""
    began, held_up = now(), (0.0, 0.0)
    for step, batch in zip(range(every), cycle(batches), strict=False):
        contender.stepper.begin(step)
        contender.stepper.step(batch)
        if step == 0 or (contender.halves and step == every // 2):
            held_up = since(now(), partial(contender.save, number * every + step), held_up)
    wall_held_up, cpu_held_up = since(now(), contender.settle, held_up)
    wall, cpu = since(began)
    return Turn(wall, cpu, wall_held_up, cpu_held_up)


def now() -> tuple[float, float]:
    """Seconds by the clock, and of all threads."""
    return time.perf_counter(), time.process_time()


def since(
    before: tuple[float, float], work: Callable[[], object] = lambda: None, more: tuple[float, float] = (0.0, 0.0)
) -> tuple[float, float]:
    """Seconds from ``before`` to the end of some work, and ``more``."""
    work()
    wall, cpu = now()
    return wall - before[0] + more[0], cpu - before[1] + more[1]


def measure(folder: Path, rounds: int, every: int, rows: int, threads: int) -> Times:
    """The contenders in turn, after a round of few steps that does not count."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    made, batches = list(contenders(folder).items()), micro_batches(rows)
    times: Times = {name: [] for name, _ in made}
    for number in range(rounds + 1):
        turn = number % len(made)
        for name, contender in made[turn:] + made[:turn]:
            taken = take_turn(contender, batches, every if number else 2, number)
            if number:
                times[name].append(taken)
    return times


def ratio(times: Times, name: str, of: Callable[[Turn], float]) -> tuple[float, str]:
    """The median of the rounds' ratios to the turn without checkpoints, and it with the quartiles as text."""
    ratios = [of(turn) / of(without) for turn, without in zip(times[name], times[NONE], strict=True)]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return middle, f"{middle:.3f} ({low:.3f}-{high:.3f})"


def show(times: Times, every: int) -> float:
    """Print a line for each contender; returns the share of ours."""
    print(f"{'':<15}{'ms per step':>12}{'held up, ms':>13}{'CPU, ms':>9}   {'time / none':<22}CPU time / none")
    for name, turns in times.items():
        values = (median(of(turn) for turn in turns) * 1e3 for of in (lambda t: t.wall / every, HELD_UP, CPU_HELD_UP))
        per_step, held_up, cpu_held_up = values
        wall, cpu = ratio(times, name, lambda turn: turn.wall)[1], ratio(times, name, lambda turn: turn.cpu)[1]
        print(f"{name:<15}{per_step:>12.1f}{held_up:>13.1f}{cpu_held_up:>9.1f}   {wall:<22}{cpu}", flush=True)
    return SAVES * median(a.cpu_held_up / b.cpu for a, b in zip(times[WAITING], times[NONE], strict=True))


def main() -> int:
    """Measure and print; returns 1 where the floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--folder", help="on the disk that counts (the system's folder for temporary files)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        arguments = (Path(folder), chosen.rounds, chosen.every, chosen.rows, chosen.threads)
        (times,) = simulate(1, measure, *arguments, timeout_s=3600)
    share = show(times, chosen.every)
    verdict = "holds " if share <= MOST else "MISSED"
    print(f"{verdict}  {SAVES} saves take {share:.2%} <= {MOST:.0%} of the CPU time of {chosen.every} steps")
    return 1 if share > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
