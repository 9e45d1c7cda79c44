"""Shards, fixed pieces of the global batch of which ranks take neighbouring ones, with their lists written out."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplers import BatchPlan, FixedGlobalBatchSampler, Sequential, Share
from samplers.contract import check_contract, global_batches
from samplers.spans import Span, dealt, even_part


def world(source, global_size, world_size, shard_rows, **settings):
    settings = {"min_per_device": 1, "shard_rows": shard_rows, **settings}
    return [FixedGlobalBatchSampler(source, global_size, rank, world_size, **settings) for rank in range(world_size)]


def lists(*arguments, **settings):
    return [list(sampler) for sampler in world(*arguments, **settings)]


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_spans_agree_with_dealing_card_by_card(rows, hands, data):
    first = data.draw(st.integers(0, hands - 1))
    held = range(first, data.draw(st.integers(first + 1, hands)))
    mine = [position for position in range(rows) if position % hands in held]
    assert dealt(rows, hands, held) == len(mine)
    start = data.draw(st.integers(0, len(mine)))
    span = Span(hands, held, start, data.draw(st.integers(start, len(mine))))
    assert span.positions().tolist() == mine[span.start : span.stop]
    assert [position % hands for position in mine] == [held[place % len(held)] for place in range(len(mine))]
    counting = data.draw(st.integers(0, rows))
    assert span.real_rows(counting) == sum(position < counting for position in mine[span.start : span.stop])


@given(st.integers(0, 100), st.integers(1, 20))
def test_even_parts_follow_each_other(count, parts):
    cut = [even_part(count, parts, part) for part in range(parts)]
    assert [at for part in cut for at in part] == list(range(count))
    sizes = [len(part) for part in cut]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("global_size", "world_size", "shard_rows", "maximum", "ranges", "micro_batches"),
    [
        (8, 1, 2, None, [(0, 4)], [(8,)]),
        (8, 2, 2, None, [(0, 2), (2, 4)], [(4,), (4,)]),
        (8, 2, 2, 2, [(0, 2), (2, 4)], [(2, 2), (2, 2)]),
        (8, 2, 2, 3, [(0, 2), (2, 4)], [(2, 2), (2, 2)]),
        (8, 3, 2, None, [(0, 2), (2, 3), (3, 4)], [(4,), (2,), (2,)]),
        # Single shards that three ranks do not divide: the one case in which ranks differ.
        (8, 3, 2, 2, [(0, 2), (2, 3), (3, 4)], [(2, 2), (2,), (2,)]),
        (8, 4, 2, 2, [(0, 1), (1, 2), (2, 3), (3, 4)], [(2,), (2,), (2,), (2,)]),
        (10, 2, 3, None, [(0, 2), (2, 3)], [(7,), (3,)]),
        (10, 1, 3, 8, [(0, 3)], [(7, 3)]),
        (11, 1, 3, 8, [(0, 3)], [(8, 3)]),
        (14, 2, 2, 4, [(0, 4), (4, 7)], [(4, 4), (4, 2)]),
        (14, 1, 2, 6, [(0, 7)], [(6, 4, 4)]),
        # Two shards could be one micro-batch, but the other rank has two.
        (10, 2, 2, 4, [(0, 3), (3, 5)], [(4, 2), (2, 2)]),
        (7, 1, 4, None, [(0, 1)], [(7,)]),
    ],
)
def test_ranks_take_neighbouring_shards(global_size, world_size, shard_rows, maximum, ranges, micro_batches):
    plan = BatchPlan(global_size, world_size, 1, maximum, shard_rows)
    ranks = range(world_size)
    assert [plan.shard_range(rank) for rank in ranks] == [range(*bounds) for bounds in ranges]
    assert [plan.micro_batches(rank) for rank in ranks] == micro_batches
    assert [plan.micro_count(rank) for rank in ranks] == [len(sizes) for sizes in micro_batches]
    assert plan.shares == tuple(map(sum, micro_batches))
    assert (plan.shards, plan.idle) == (ranges[-1][1], 0)


def test_without_shards_there_are_none():
    plan = BatchPlan(100, 3)
    assert (plan.shards, plan.largest_shard, plan.shard_range(2)) == (0, 0, range(0))


@given(st.integers(1, 20), st.integers(1, 8), st.data())
def test_plans_with_shards_hold(shards, shard_rows, data):
    # Rows beyond shards * shard_rows, as many as make no further shard.
    global_size = shards * shard_rows + data.draw(st.integers(0, shard_rows - 1))
    maximum = data.draw(st.none() | st.integers(-(-global_size // shards), global_size))
    minimum = data.draw(st.integers(1, shard_rows))
    plan = BatchPlan(global_size, data.draw(st.integers(1, shards + 3)), minimum, maximum, shard_rows)
    assert plan.shards == shards
    by_shard = [dealt(global_size, shards, range(shard, shard + 1)) for shard in range(shards)]
    assert shard_rows <= min(by_shard) <= max(by_shard) == plan.largest_shard <= (maximum or global_size)
    ranks = range(plan.active)
    held = [plan.shard_range(rank) for rank in ranks]
    assert [shard for part in held for shard in part] == list(range(shards))
    assert plan.shares == tuple(sum(by_shard[part.start : part.stop]) for part in held)
    counts = [plan.micro_count(rank) for rank in ranks]
    single = maximum is not None and maximum < 2 * plan.largest_shard
    assert len(set(counts)) == 1 or (single and counts == [len(part) for part in held])
    for rank in ranks:
        spans = plan.micro_spans(rank)
        assert [shard for span in spans for shard in span.held] == list(held[rank])
        assert minimum <= min(map(len, spans)) <= max(map(len, spans)) <= (maximum or global_size)


@pytest.mark.parametrize(
    ("n", "size", "ranks", "shard_rows", "more", "expected"),
    [
        (8, 8, 1, 2, {}, [[[0, 1, 2, 3, 4, 5, 6, 7]]]),
        (8, 8, 1, 2, {"max_per_device": 4}, [[[0, 1, 4, 5], [2, 3, 6, 7]]]),
        (8, 8, 1, 2, {"max_per_device": 2}, [[[0, 4], [1, 5], [2, 6], [3, 7]]]),
        (8, 8, 2, 2, {}, [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]),
        (8, 8, 3, 2, {}, [[[0, 1, 4, 5]], [[2, 6]], [[3, 7]]]),
        (8, 8, 3, 2, {"max_per_device": 2}, [[[0, 4], [1, 5]], [[2, 6]], [[3, 7]]]),
        (8, 8, 4, 2, {}, [[[0, 4]], [[1, 5]], [[2, 6]], [[3, 7]]]),
        (7, 7, 2, 2, {}, [[[0, 1, 3, 4, 6]], [[2, 5]]]),
        (7, 7, 2, 2, {"max_per_device": 3}, [[[0, 3, 6], [1, 4]], [[2, 5]]]),
        (11, 8, 2, 2, {"tail": "pad"}, [[[0, 1, 4, 5], [8, 9, 1, 2]], [[2, 3, 6, 7], [10, 0, 3, 4]]]),
        (10, 6, 2, 3, {"tail": "spread"}, [[[0, 2, 4], [6, 8]], [[1, 3, 5], [7, 9]]]),
        (10, 6, 1, 3, {"tail": "spread"}, [[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]]),
        (9, 6, 1, 3, {"tail": "spread", "min_per_device": 2}, [[[0, 1, 2, 3, 4, 5]]]),
        (10, 6, 2, 3, {"tail": "carry"}, [[[0, 2, 4]], [[1, 3, 5]]]),
    ],
)
def test_rows_are_dealt_to_shards(n, size, ranks, shard_rows, more, expected):
    assert lists(Sequential(n), size, ranks, shard_rows, **more) == expected


def test_the_carried_tail_opens_the_next_epoch():
    samplers = world(Sequential(7), 4, 2, 1, tail="carry", max_per_device=2)
    assert [[list(sampler) for sampler in samplers] for _ in range(2)] == [
        [[[0, 1]], [[2, 3]]],
        [[[4, 5], [1, 2]], [[6, 0], [3, 4]]],
    ]
    samplers = world(Sequential(7), 4, 1, 1, tail="carry", max_per_device=1)
    assert [list(samplers[0]) for _ in range(2)] == [
        [[0], [1], [2], [3]],
        [[4], [5], [6], [0], [1], [2], [3], [4]],
    ]


@pytest.mark.parametrize(
    ("more", "rank", "micro_batch", "expected"),
    [
        ({}, 0, 0, Share(0, 4, 4, 8, True, range(2))),
        ({}, 1, 0, Share(0, 2, 2, 8, True, range(2, 3))),
        ({"tail": "pad"}, 0, 1, Share(1, 4, 2, 2, True, range(2))),
        ({"tail": "pad"}, 2, 1, Share(1, 2, 0, 2, True, range(3, 4))),
        ({"tail": "pad", "pad_weight": 1}, 2, 1, Share(1, 2, 2, 8, True, range(3, 4))),
        ({"tail": "pad", "max_per_device": 2}, 0, 0, Share(0, 2, 2, 8, False, range(1))),
        ({"tail": "pad", "max_per_device": 2}, 0, 3, Share(1, 2, 1, 2, True, range(1, 2))),
        ({"tail": "pad", "max_per_device": 2}, 1, 1, Share(1, 2, 0, 2, True, range(2, 3))),
    ],
)
def test_shares_of_ten_rows_in_four_shards_on_three_ranks(more, rank, micro_batch, expected):
    assert world(10, 8, 3, 2, **more)[rank].share(micro_batch) == expected


@pytest.mark.parametrize("tail", ["drop", "pad", "spread", "carry"])
@pytest.mark.parametrize(
    ("n", "size", "rows", "maximum"), [(26, 6, 2, None), (26, 11, 2, 3), (40, 24, 3, 6), (9, 7, 1, 1)]
)
def test_the_contract_holds_in_every_world(tail, n, size, rows, maximum):
    def make(rank, ranks):
        more = {"tail": tail, "min_per_device": 1, "max_per_device": maximum, "shard_rows": rows}
        return FixedGlobalBatchSampler(n, size, rank, ranks, **more)

    check_contract(make, range(1, size // rows + 1))


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
def test_the_global_batches_are_those_without_shards(tail):
    def make(rank, ranks):
        return FixedGlobalBatchSampler(
            26, 11, rank, ranks, tail=tail, min_per_device=1, shard_rows=(None, 1, 2)[ranks % 3]
        )

    check_contract(make, (1, 2, 3, 4, 5))


def test_one_rank_with_shards_stops_and_two_without_continue():
    state = json.loads(json.dumps(world(Sequential(16), 4, 1, 2)[0].state_dict(4)))
    samplers = world(Sequential(16), 4, 2, None)
    for sampler in samplers:
        sampler.load_state_dict(state)
    assert [batch.dealt for batch in global_batches(samplers)] == [(4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]


def test_rows_that_were_drawn_are_counted_by_the_rank_itself():
    samplers = world(24, 8, 3, 2, max_per_device=2)
    assert [len(sampler) for sampler in samplers] == [6, 3, 3]
    iterators = [iter(sampler) for sampler in samplers]
    for iterator in (iterators[0], *iterators):
        next(iterator)
    assert [sampler.state_dict()["rows"] for sampler in samplers] == [8, 8, 8]
    with pytest.raises(IndexError, match="micro_batch=3 lies outside the pass of epoch 0, which has 3 micro-batches"):
        samplers[1].share(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (64, 1, 16, None, 8),
            (
                "shard_rows=8 makes shards smaller than min_per_device=16, and a shard can be a micro-batch by itself: "
                "raise shard_rows or lower min_per_device"
            ),
        ),
        ((64, 1, 16, None, 65), "shard_rows=65 is larger than global_size=64: not even one shard gets its rows; lower"),
        (
            (100, 1, 16, 33, 32),
            (
                "max_per_device=33 is smaller than a shard: global_size=100 in 3 shards of shard_rows=32 or more gives "
                "shards of 34 rows, and a shard is never cut; raise max_per_device to 34 or lower shard_rows"
            ),
        ),
        ((64, 1, 16, 15, 16), "max_per_device=15 is smaller than min_per_device=16"),
        ((8, 1, 16, None, 16), "global_size=8 is smaller than min_per_device=16"),
        ((64, 1, 16, None, 0), "shard_rows=0 is too small: it must be at least 1; give the fewest rows a shard may"),
        ((64, 1, 16, None, 16.0), "shard_rows=16.0 is of type float: it must be a whole number"),
        ((64, 1, 16, None, True), "shard_rows=True is a bool"),
    ],
)
def test_wrong_settings_name_option_value_and_rule(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BatchPlan(*arguments)


def test_a_rank_without_a_shard_would_idle():
    plan = BatchPlan(100, 8, 16, None, 32)
    assert (plan.active, plan.idle, plan.shares) == (3, 5, (34, 33, 33))
    message = (
        "rank=3 would idle: global_size=100 makes 3 shards of shard_rows=32 or more, one for 3 of world_size=8 ranks "
        "only; use 3 ranks, raise global_size to 256, or lower shard_rows"
    )
    for refused in (plan.micro_batches, plan.shard_range, plan.check_works):
        with pytest.raises(ValueError, match=re.escape(message)):
            refused(3)
    with pytest.raises(ValueError, match="rank=8 lies outside world_size=8"):
        plan.shard_range(8)
    with pytest.raises(ValueError, match="rank=7 would idle: global_size=100 makes 3 shards"):
        FixedGlobalBatchSampler(1000, 100, 7, 8, shard_rows=32)


def test_a_tail_that_no_shard_can_use_is_refused():
    with pytest.raises(ValueError, match="they do not give min_per_device=2 rows to each of 4 shards"):
        FixedGlobalBatchSampler(7, 8, 0, 1, tail="spread", min_per_device=2, shard_rows=2)


def test_millions_of_shards_are_cheap():
    plan = BatchPlan(1 << 50, 1 << 30, 16, 64, 16)
    assert plan.shard_range((1 << 30) - 1) == range((1 << 46) - (1 << 16), 1 << 46)
    assert plan.micro_count(5) == 1 << 14
    sampler = FixedGlobalBatchSampler(1 << 52, 1 << 50, 5, 1 << 30, max_per_device=64, shard_rows=16)
    assert len(sampler) == 4 << 14
    assert sampler.share(len(sampler) - 1).last_in_step
    assert "1, 2, 4, 8, 16, 32, 64, ... or 70368744177664 devices" in str(sampler.report())


@pytest.mark.parametrize(
    ("plan", "lines"),
    [
        (
            (256, 4, 16, None, 32),
            [
                "global batch     256 rows = 4 ranks x 64 rows",
                "micro-batches    1 per step on every rank, 64 rows each",
                "shards           8 x 32 rows: 1, 2, 4 or 8 devices divide them evenly",
                "epoch            1000 rows = 3 x 256 + 232: 3 steps",
            ],
        ),
        (
            (256, 3, 16, 32, 32),
            [
                "global batch     256 rows = 3 ranks x 64 to 96 rows",
                "micro-batches    2 or 3 per step, by rank, 32 rows each",
                "shards           8 x 32 rows: 1, 2, 4 or 8 devices divide them evenly",
                (
                    "                 3 devices take 3, 3, 2: a step lasts as long as 3 shards, 12.5 % more than an "
                    "even split"
                ),
                "epoch            1000 rows = 3 x 256 + 232: 3 steps",
            ],
        ),
        (
            (100, 8, 16, 40, 32),
            [
                "global batch     100 rows = 3 ranks x 33 to 34 rows, 5 of 8 idle",
                "micro-batches    1 per step on every rank, 33 to 34 rows each",
                "shards           3 x 33 to 34 rows: 1 or 3 devices divide them evenly",
                "epoch            1000 rows = 10 x 100 + 0: 10 steps",
            ],
        ),
        (
            (100, 1, 16, None, 64),
            [
                "global batch     100 rows = 1 rank x 100 rows",
                "micro-batches    1 per step on every rank, 100 rows each",
                "shards           1 x 100 rows: for 1 device",
                "epoch            1000 rows = 10 x 100 + 0: 10 steps",
            ],
        ),
        (
            (720, 100, 1, None, 2),
            [
                "global batch     720 rows = 100 ranks x 6 to 8 rows",
                "micro-batches    1 per step on every rank, 6 to 8 rows each",
                "shards           360 x 2 rows: 1, 2, 3, 4, 5, 6, 8, ... or 360 devices divide them evenly",
                (
                    "                 100 devices take 3 or 4: a step lasts as long as 4 shards, 11.1 % more than an "
                    "even split"
                ),
                "epoch            1000 rows = 1 x 720 + 280: 1 step",
            ],
        ),
    ],
)
def test_the_report_says_how_many_devices_divide_the_shards(plan, lines):
    assert str(BatchPlan(*plan).report(1000)).splitlines()[:-1] == lines


def test_the_report_counts_shards():
    report = BatchPlan(256, 3, 16, 32, 32).report(1000, "spread")
    assert (report.shards, report.most_shards, report.fewest_shards, report.micro_batches_per_step) == (8, 3, 2, 3)
    assert (report.largest_share, report.smallest_share, report.last_step_rows) == (96, 64, 232)
    assert (report.largest_micro_batch, report.smallest_micro_batch) == (32, 29)
    assert BatchPlan(256, 3).report(1000).shards == 0


def test_the_report_says_that_a_tail_is_too_short_for_the_shards():
    assert str(BatchPlan(256, 2, 16, None, 32).report(300, "spread")).splitlines()[-1] == (
        "tail             spread: rows left out of every epoch: 44 (too few for every shard)"
    )


@given(
    st.tuples(st.integers(1, 120), st.integers(1, 48), st.integers(1, 8)),
    st.sampled_from(["drop", "pad", "spread", "carry"]),
    st.integers(1, 3),
    st.none() | st.integers(1, 16),
    st.integers(1, 12),
)
@settings(deadline=None, max_examples=200)
def test_what_is_accepted_keeps_the_contract(numbers, tail, minimum, maximum, shard_rows):
    n, size, ranks = numbers
    try:
        samplers = world(n, size, ranks, shard_rows, tail=tail, min_per_device=minimum, max_per_device=maximum)
        single = world(n, size, 1, shard_rows, tail=tail, min_per_device=minimum)
    except ValueError:
        return
    for _ in range(2):
        batches, whole = global_batches(samplers), global_batches(single)
        assert [batch.dealt for batch in batches] == [batch.dealt for batch in whole]
        assert [batch.step for batch in batches] == list(range(len(batches)))
        for batch in batches:
            sizes = [rows for shards in batch.shards for rows in shards]
            assert sum(sizes) == batch.rows
            assert minimum <= min(sizes) <= max(sizes) <= min(sizes) + 1 <= size + 1
