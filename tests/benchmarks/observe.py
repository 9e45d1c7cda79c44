"""What observing costs: the digits job with trainer.observe=true, and without.

    python tests/benchmarks/observe.py [--rounds 41] [--ranks 2] [--epochs 3]

Both train copies of one model on the same rows in the same processes and take turns of so many epochs of 11 steps, each
round in another order; both write metrics.jsonl, TensorBoard and status.json every 10 steps. Compared are the quicker
turns of each (the first decile), since what else the machine does only ever adds: their time by the clock on rank 0,
and the CPU time of all ranks, which other work disturbs less and which counts all that is done. The quartiles of a turn
beside the other of its round tell how much the machine was disturbed.

The exit status is 1 where observing adds more than 1 % to either.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import quantiles
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher.data.digits import digits
from launcher.models.small_conv import SmallConvNet
from launcher.observe.clock import clock_of
from launcher.observe.gauges import CpuUse, Paced, gpu_use
from launcher.observe.meter import Meter, RunMeter
from launcher.observe.observer import Observer, RunObserver
from launcher.observe.status import Status
from launcher.testing import simulate
from launcher.training.agree import Agreement
from launcher.training.best import BestRule
from launcher.training.compute import Compute
from launcher.training.loop import Limits, Training
from launcher.training.patience import Patience
from launcher.training.progress import Progress
from launcher.training.reduction import Averaged
from launcher.training.step import Stepper
from launcher.training.stop import StopRule
from launcher.training.task import Supervised
from launcher.training.wrap import wrap
from samplers import FixedGlobalBatchSampler

MOST = 0.01
WARM_UP = 2
ON, OFF = "on", "off"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Turn:
    """Seconds of a turn: by the clock, and of the CPU."""

    wall: float
    cpu: float


def keeps_nothing() -> SimpleNamespace:
    """What stands in for the keeper of checkpoints."""
    return SimpleNamespace(look=lambda: None, keep=lambda _: None, cadence=SimpleNamespace(is_due=lambda _: False))


def training(model: nn.Module, meter: Meter, observer: Observer, rank: int, ranks: int) -> Training:
    """The digits job of a rank, which ends after no epoch; checkpoints and evaluation are left out."""
    rows = digits()
    sampler = FixedGlobalBatchSampler(len(rows), 128, rank, ranks)
    wrapped = wrap(model, False, {}, CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    task = Supervised(nn.CrossEntropyLoss(reduction="none"))
    reduction = Averaged(wrapped, rank=rank, divides_by=ranks)
    return Training(
        stepper=Stepper(wrapped, task, optimizer, None, Compute.of("fp32", CPU), reduction, clock=meter.clock),
        sampler=sampler,
        loader=DataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate_fn),
        evaluate=None,
        keeper=keeps_nothing(),  # type: ignore[arg-type]
        observer=observer,
        agreement=Agreement(lambda: None, lambda _: None, CPU, lambda: None),
        limits=Limits(
            0, None, 0, 10, StopRule.parse(None, []), Patience.parse(None, None, []), BestRule.parse(None, [])
        ),
        progress=Progress(),
        meter=meter,
    )


def contenders(folder: Path, rank: int, ranks: int) -> dict[str, Training]:
    """Both on this rank."""
    torch.manual_seed(0)
    model = SmallConvNet()
    gauges = [Paced(gpu_use(CPU)), *([Paced(CpuUse())] if rank == 0 else [])]
    meters = {ON: RunMeter(clock_of(CPU, alone=ranks == 1), CPU, CPU, gauges), OFF: Meter()}
    made = {}
    for name, meter in meters.items():
        (folder / name).mkdir(exist_ok=True)
        observer = RunObserver(folder / name, Status(), 1, 1, evaluates=True) if rank == 0 else Observer()
        made[name] = training(deepcopy(model), meter, observer, rank, ranks)
    return made


def take_turn(trained: Training, epochs: int) -> Turn:
    """So many epochs more, all ranks beginning together."""
    whole = replace(trained.limits, epochs=trained.progress.epoch + epochs)
    if dist.is_initialized():
        dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    replace(trained, limits=whole).run()
    return Turn(time.perf_counter() - wall, time.process_time() - cpu)


def on_a_rank(folder: Path, rounds: int, epochs: int) -> dict[str, list[Turn]]:
    """The turns of each, on this rank."""
    torch.set_num_threads(1)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    made = contenders(folder, rank, ranks)
    turns: dict[str, list[Turn]] = {name: [] for name in made}
    for number in range(-WARM_UP, rounds):
        for name in (ON, OFF) if number % 2 else (OFF, ON):
            turn = take_turn(made[name], epochs)
            if number >= 0:
                turns[name].append(turn)
    return turns


def cost(turns: dict[str, list[Turn]], seconds: Callable[[Turn], float]) -> float:
    """The part that observing adds to the quicker turns."""
    on, off = (quantiles(map(seconds, turns[name]), n=10)[0] for name in (ON, OFF))
    return on / off - 1


def side_by_side(turns: dict[str, list[Turn]], seconds: Callable[[Turn], float]) -> list[float]:
    """Quartiles of the part that a turn adds to the other of its round."""
    pairs = zip(turns[ON], turns[OFF], strict=True)
    return quantiles([seconds(on) / seconds(off) - 1 for on, off in pairs], n=4)


def over_ranks(ranks: list[dict[str, list[Turn]]]) -> dict[str, list[Turn]]:
    """The time of rank 0, and the CPU time of all."""
    return {
        name: [
            Turn(turns[0].wall, sum(turn.cpu for turn in turns))
            for turns in zip(*(each[name] for each in ranks), strict=True)
        ]
        for name in (ON, OFF)
    }


def main() -> int:
    """Measure and print; returns 1 where it costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="of 11 steps, in a turn")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = partial(on_a_rank, Path(folder), chosen.rounds, chosen.epochs)
        turns = over_ranks(simulate(chosen.ranks, work, timeout_s=3600))
    holds = True
    for what, seconds in (("time", lambda turn: turn.wall), ("CPU time", lambda turn: turn.cpu)):
        added, (low, middle, high) = cost(turns, seconds), side_by_side(turns, seconds)
        holds = holds and added <= MOST
        print(f"observing adds {added:+.2%} to the {what} of a turn (rounds: {low:+.2%}, {middle:+.2%}, {high:+.2%})")
    print(f"{'holds ' if holds else 'MISSED'}  at most {MOST:.0%}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
