"""Where the time of a step goes."""

import math
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from launcher.observe.clock import MOST_MARKS, PARTS, Clock, HostTimer, Stopwatch, shares_of, waited_for
from launcher.observe.memory import memory_of
from launcher.observe.meter import OF_RANKS, Meter, RunMeter, joined
from launcher.testing import simulate
from launcher.training.compute import Compute
from launcher.training.reduction import Averaged
from launcher.training.step import Stepper, by_step
from launcher.training.wrap import wrap
from samplers import FixedGlobalBatchSampler
from tests.launcher.command import TINY, Line, in_turn
from tests.launcher.slow import DATA_S, LOSS_S, SAVE_S, Rows, Task, save_slowly

CPU = torch.device("cpu")


class Hands:
    """A clock that goes when it is moved."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time

    def move(self, seconds):
        self.time += seconds


def stopwatch(**options):
    hands = Hands()
    return hands, Stopwatch(HostTimer(hands), **options)


def some(seconds):
    """The parts that took any time."""
    return {name: round(value, 9) for name, value in seconds.items() if value}


def test_a_part_inside_another_is_no_part_of_it():
    hands, clock = stopwatch()
    hands.move(1)
    with clock.part("forward_backward"):
        hands.move(2)
        with clock.part("to_device"):
            hands.move(4)
        hands.move(8)
    hands.move(16)
    assert some(clock.seconds()) == {"other": 17, "forward_backward": 10, "to_device": 4}
    assert set(clock.seconds()) == set(PARTS)
    assert some(clock.seconds()) == {}


def test_an_interval_may_end_inside_a_part():
    hands, clock = stopwatch()
    with clock.part("evaluation"):
        hands.move(1)
        assert some(clock.seconds()) == {"evaluation": 1}
        hands.move(2)
    assert some(clock.seconds()) == {"evaluation": 2}


def test_a_part_that_fails_is_over():
    hands, clock = stopwatch()
    with suppress(ValueError), clock.part("data"):
        hands.move(1)
        raise ValueError
    hands.move(2)
    assert some(clock.seconds()) == {"data": 1, "other": 2}


def test_a_long_interval_takes_no_more_memory():
    hands, clock = stopwatch()
    for _ in range(2 * MOST_MARKS):
        with clock.part("data"):
            hands.move(1)
        hands.move(0.5)
    assert len(clock._marks) <= MOST_MARKS
    assert some(clock.seconds()) == {"data": 2 * MOST_MARKS, "other": MOST_MARKS}


def test_what_is_waited_for_is_data():
    def batches():
        for number in range(3):
            hands.move(2)
            yield number
        hands.move(4)

    hands, clock = stopwatch()
    for _ in waited_for(batches(), clock):
        hands.move(1)
    assert some(clock.seconds()) == {"data": 10, "other": 3}
    assert list(waited_for(range(3), Clock())) == [0, 1, 2]


def test_shares_add_up_to_one_whatever_was_measured():
    assert sum(shares_of({"data": 0.1, "optimizer": 0.2, "other": 0.7}).values()) == pytest.approx(1, abs=1e-12)
    assert shares_of(dict.fromkeys(PARTS, 0.0))["other"] == 1


@pytest.mark.parametrize("alone", [True, False])
def test_what_backward_waits_for_at_its_end_is_communication_where_there_are_others(alone):
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def late(_):
        hands.move(2)
        queue(lambda: hands.move(4))  # as DistributedDataParallel does when the last gradient is there

    hands, clock = stopwatch(alone=alone)
    weight = nn.Parameter(torch.ones(3))
    weight.register_hook(late)
    loss = (weight * weight).sum()
    with clock.part("forward_backward"):
        hands.move(1)
        clock.after_backward(loss, "communication")
        (loss * 2).backward()
    hands.move(8)
    computed = {"forward_backward": 7} if alone else {"forward_backward": 3, "communication": 4}
    assert some(clock.seconds()) == {**computed, "other": 8}


def test_a_loss_without_a_gradient_is_left_to_backward():
    stopwatch()[1].after_backward(torch.ones(()), "communication")


def steps_by_moved_clock(ranks, micro_batch):
    """The seconds of each part of two steps of 12 rows, whose data and losses take a known time."""
    hands, clock = stopwatch(alone=ranks == 1)
    rank = dist.get_rank() if dist.is_initialized() else 0
    rows = Rows(24, hands.move)
    sampler = FixedGlobalBatchSampler(24, 12, rank, ranks, min_per_device=1, max_per_device=micro_batch)
    model = wrap(nn.Linear(4, 3), False, {}, CPU)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: hands.move(0.2))
    compute = Compute.of("fp32", CPU)
    reduction = Averaged(model, divides_by=ranks)
    stepper = Stepper(model, Task(wait=hands.move), optimizer, None, compute, reduction, clock=clock)
    loader = DataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate_fn)
    for micro_batches in by_step(waited_for(loader, clock), sampler):
        stepper.step(micro_batches)
    return some(clock.seconds())


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_parts_of_a_step_take_what_they_are_known_to_take(micro_batch):
    count = 2 if micro_batch is None else 6
    right = {"data": count * DATA_S, "forward_backward": count * LOSS_S, "optimizer": 0.4}
    assert steps_by_moved_clock(1, micro_batch) == pytest.approx(right)


def test_so_they_do_with_several_ranks():
    right = {"data": 4 * DATA_S, "forward_backward": 4 * LOSS_S, "optimizer": 0.4}
    assert simulate(2, steps_by_moved_clock, 2, 3) == [pytest.approx(right)] * 2


def test_the_meter_tells_shares_speed_and_memory():
    hands, clock = stopwatch()
    meter = RunMeter(clock, CPU, CPU)
    hands.move(100)
    meter.begin()
    with clock.part("data"):
        hands.move(3)
    with clock.part("evaluation"):
        hands.move(4)
    hands.move(1)
    told = meter.close(80)
    assert (told["time/interval_s"], told["time/data"], told["time/evaluation"], told["time/other"]) == (
        8,
        3 / 8,
        0.5,
        0.125,
    )
    assert told["speed/rows_per_s_per_rank"] == 20
    assert 0 < told["memory/now_bytes"] <= told["memory/peak_bytes"]
    assert Meter().close(80) == {}


def test_of_several_ranks_the_mean_time_and_the_most_memory_are_told():
    def rank(**values):
        return [values.get(name.replace("/", "_"), math.nan) for name in OF_RANKS]

    told = joined([rank(time_data=0.5, memory_peak_bytes=1), rank(time_data=0.1, memory_peak_bytes=7)])
    assert told == {"time/data": pytest.approx(0.3), "memory/peak_bytes": 7, "time/data_most": 0.5}


def test_memory_grows_with_what_is_kept():
    before = memory_of(CPU)["now_bytes"]
    kept = torch.ones(50_000_000, dtype=torch.uint8)
    assert memory_of(CPU)["now_bytes"] - before > 40_000_000
    assert memory_of(CPU)["peak_bytes"] >= before + len(kept) * 0.8


def test_a_real_run_tells_where_its_time_went(tmp_path):
    slow = (
        "data.train={_target_: tests.launcher.slow.Rows, n: 48}",
        "task._target_=tests.launcher.slow.Task",
        "trainer.epochs=1",
        "trainer.log_every=2",
        "checkpoint.every_steps=1",
        "checkpoint.background=false",
    )
    observed, silent = in_turn(
        Line(tmp_path / "observed", (*TINY, *slow), save_slowly),
        Line(tmp_path / "silent", (*TINY, "trainer.observe=false")),
    )
    assert observed.status == silent.status == 0, observed.error + silent.error
    lines = [line for line in observed.metrics if "train/loss" in line]
    for line in lines:
        assert sum(line[f"time/{part}"] for part in PARTS) == pytest.approx(1)
    spent = {part: [line[f"time/{part}"] * line["time/interval_s"] for line in lines] for part in PARTS}
    assert min(spent["forward_backward"]) >= 2 * LOSS_S
    assert sum(spent["data"]) >= 4 * DATA_S
    assert spent["checkpoint"][1] >= 2 * SAVE_S
    assert "  data " in observed.output
    assert not any(name.startswith("time/") for line in silent.metrics for name in line)
    assert "  data " not in silent.output
