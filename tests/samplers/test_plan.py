import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplers import BatchPlan


@pytest.mark.parametrize(
    ("global_size", "world_size", "minimum", "shares"),
    [
        (100, 3, 16, (34, 33, 33)),
        (10, 4, 1, (3, 3, 2, 2)),
        (7, 7, 1, (1, 1, 1, 1, 1, 1, 1)),
        (64, 4, 16, (16, 16, 16, 16)),
        (64, 5, 16, (16, 16, 16, 16)),
        (64, 5, 17, (22, 21, 21)),
        (16, 8, 16, (16,)),
    ],
)
def test_shares(global_size, world_size, minimum, shares):
    plan = BatchPlan(global_size, world_size, minimum)
    assert plan.shares == shares
    assert plan.active == len(shares)
    assert plan.idle == world_size - len(shares)


@pytest.mark.parametrize(
    ("maximum", "expected"),
    [
        (None, [(34,), (33,), (33,)]),
        (34, [(34,), (33,), (33,)]),
        (33, [(17, 17), (17, 16), (17, 16)]),
        (17, [(17, 17), (17, 16), (17, 16)]),
    ],
)
def test_micro_batches_are_as_many_on_every_rank(maximum, expected):
    plan = BatchPlan(100, 3, 16, maximum)
    assert [plan.micro_batches(rank) for rank in range(3)] == expected


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 20), st.none() | st.integers(1, 80))
def test_every_plan_that_is_accepted_holds(global_size, world_size, minimum, maximum):
    try:
        plan = BatchPlan(global_size, world_size, minimum, maximum)
    except ValueError:
        return
    assert sum(plan.shares) == global_size
    assert max(plan.shares) - min(plan.shares) <= 1
    assert list(plan.shares) == sorted(plan.shares, reverse=True)
    micro = [plan.micro_batches(rank) for rank in range(plan.active)]
    assert [sum(sizes) for sizes in micro] == list(plan.shares)
    assert len({len(sizes) for sizes in micro}) == 1
    for sizes in micro:
        assert minimum <= min(sizes) <= max(sizes) <= (maximum or global_size)
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 1), "global_size=8 is smaller than min_per_device=16: .*raise global_size or lower min_per_device"),
        ((64, 0), "world_size=0 is too small: it must be at least 1; give the number of ranks"),
        ((0, 1), "global_size=0 is too small"),
        ((-4, 1), "global_size=-4 is too small"),
        ((64, 1, 0), "min_per_device=0 is too small"),
        ((64, 1, 16, 0), "max_per_device=0 is too small"),
        ((64, 1, 16, 15), "max_per_device=15 is smaller than min_per_device=16"),
        (
            (64, 3, 16, 20),
            "cuts a share of 21 rows into 2 micro-batches, the smallest of 10 rows, below min_per_device=16",
        ),
        ((64.0, 1), r"global_size=64.0 is of type float: it must be a whole number"),
        ((True, 1), "global_size=True is a bool"),
        ((np.bool_(True), 1), "is a bool"),
        (("64", 1), "global_size='64' is of type str"),
        ((64, None), "world_size=None is of type NoneType"),
    ],
)
def test_wrong_settings_name_option_value_and_rule(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchPlan(*arguments)


def test_wrong_types_are_type_errors_too():
    with pytest.raises(TypeError):
        BatchPlan(64.0, 1)


def test_numpy_integers_become_plain_ones():
    plan = BatchPlan(np.int64(100), np.uint8(3), np.int32(16), np.int16(50))
    assert plan == BatchPlan(100, 3, 16, 50)
    assert type(plan.global_size) is int
    assert type(plan.max_per_device) is int


def test_plan_is_frozen():
    with pytest.raises(FrozenInstanceError):
        BatchPlan(64, 1).global_size = 1


@pytest.mark.parametrize(
    ("rank", "message"), [(3, "lies outside world_size=3"), (2, "rank=2 would idle"), (-1, "rank=-1")]
)
def test_ranks_without_rows_have_no_micro_batches(rank, message):
    with pytest.raises(ValueError, match=message):
        BatchPlan(32, 3).micro_batches(rank)


def test_a_large_world_is_cheap():
    plan = BatchPlan(1 << 40, 1 << 30)
    assert plan.micro_batches((1 << 30) - 1) == (1024,)
    assert plan.report(1 << 50).steps_per_epoch == 1024


@pytest.mark.parametrize(
    ("tail", "steps", "dropped_padded_carried"),
    [
        ("drop", 3, (1, 0, 0)),
        ("pad", 4, (0, 31, 0)),
        ("spread", 3, (1, 0, 0)),
        ("carry", 3, (0, 0, 1)),
    ],
)
def test_report_counts_the_tail_of_97_rows(tail, steps, dropped_padded_carried):
    report = BatchPlan(32, 8, 1).report(97, tail)
    assert (report.n, report.steps_per_epoch) == (97, steps)
    assert (report.rows_dropped, report.rows_padded, report.rows_carried) == dropped_padded_carried
    assert (report.last_step_rows, report.smallest_micro_batch) == (32, 4)


def test_report_of_a_smaller_last_step():
    report = BatchPlan(32, 8, 1, 2).report(105, "spread")
    assert (report.steps_per_epoch, report.last_step_rows, report.rows_dropped) == (4, 9, 0)
    assert (report.smallest_micro_batch, report.largest_micro_batch, report.micro_batches_per_step) == (1, 2, 2)


def test_report_shows_the_arithmetic():
    assert str(BatchPlan(100, 9, 16, 18).report(1797)) == (
        "global batch     100 rows = 6 ranks x 16 to 17 rows, 3 of 9 idle\n"
        "micro-batches    1 per step on every rank, 16 to 17 rows each\n"
        "epoch            1797 rows = 17 x 100 + 97: 17 steps\n"
        "tail             drop: rows left out of every epoch: 97"
    )


@pytest.mark.parametrize(
    ("n", "tail", "line"),
    [
        (96, "drop", "none: every global batch is whole"),
        (97, "pad", "pad: the last step has 1 row and repeats 31 from the start of the order"),
        (97, "spread", "spread: rows left out of every epoch: 1 (too few for every rank)"),
        (106, "spread", "spread: the last step has 10 rows"),
        (97, "carry", "carry: rows of the first epoch that open the second: 1"),
    ],
)
def test_report_says_what_happens_to_the_tail(n, tail, line):
    assert str(BatchPlan(32, 8, 1).report(n, tail)).splitlines()[-1] == f"tail             {line}"


@pytest.mark.parametrize(
    ("n", "tail", "message"),
    [
        (31, "drop", "global_size=32 with tail='drop' leaves no whole global batch in n=31 rows: .*tail='pad'"),
        (31, "carry", "global_size=32 with tail='carry' leaves no whole global batch"),
        (7, "spread", "they do not give min_per_device=1 rows to each of 8 ranks"),
        (0, "pad", "n=0 is too small"),
        (97, "keep", "tail='keep' is unknown: it must be one of drop, pad, spread, carry"),
        (97, None, "tail=None is unknown"),
    ],
)
def test_report_refuses_an_epoch_without_a_step(n, tail, message):
    with pytest.raises(ValueError, match=re.escape(message) if "*" not in message else message):
        BatchPlan(32, 8, 1).report(n, tail)


def test_one_rank_is_singular_and_steps_are_of_real_epochs():
    report = BatchPlan(32, 1).report(97)
    assert "32 rows = 1 rank x 32 rows" in str(report)
    with pytest.raises(ValueError, match="epochs=-3 is too small: it must be at least 0; give the epochs to train"):
        report.steps(-3)
