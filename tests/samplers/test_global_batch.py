"""The contract of the training sampler, in small cases with their lists written out."""

import pickle
import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from samplers import ExactlyOnceSampler, FixedGlobalBatchSampler, Grouped, Sequential, Share, Shuffled
from samplers.contract import check_contract, check_no_starved_rank, global_batches


def world(source, global_size, world_size, **settings):
    settings = {"min_per_device": 1, **settings}
    return [FixedGlobalBatchSampler(source, global_size, rank, world_size, **settings) for rank in range(world_size)]


def lists(*arguments, **settings):
    return [list(sampler) for sampler in world(*arguments, **settings)]


@pytest.mark.parametrize(
    ("n", "size", "ranks", "settings", "expected"),
    [
        (8, 8, 2, {}, [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]),
        (10, 4, 2, {}, [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]),
        (10, 10, 4, {}, [[[0, 4, 8]], [[1, 5, 9]], [[2, 6]], [[3, 7]]]),
        (9, 8, 2, {"max_per_device": 2}, [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]),
        (10, 5, 2, {"max_per_device": 2}, [[[0, 2], [4], [5, 7], [9]], [[1], [3], [6], [8]]]),
        (3, 4, 2, {"tail": "pad"}, [[[0, 2]], [[1, 0]]]),
        (5, 4, 2, {"tail": "pad"}, [[[0, 2], [4, 1]], [[1, 3], [0, 2]]]),
        (1, 4, 2, {"tail": "pad"}, [[[0, 0]], [[0, 0]]]),
        (7, 4, 2, {"tail": "spread"}, [[[0, 2], [4, 6]], [[1, 3], [5]]]),
        (5, 4, 2, {"tail": "spread"}, [[[0, 2]], [[1, 3]]]),
        (3, 4, 2, {"tail": "spread"}, [[[0, 2]], [[1]]]),
        (7, 4, 2, {"tail": "carry"}, [[[0, 2]], [[1, 3]]]),
    ],
)
def test_rows_are_dealt_like_cards(n, size, ranks, settings, expected):
    assert lists(Sequential(n), size, ranks, **settings) == expected


def test_the_carried_tail_opens_the_next_epoch():
    samplers = world(Sequential(7), 4, 2, tail="carry")
    assert [[list(sampler) for sampler in samplers] for _ in range(4)] == [
        [[[0, 2]], [[1, 3]]],
        [[[4, 6], [1, 3]], [[5, 0], [2, 4]]],
        [[[5, 0], [2, 4]], [[6, 1], [3, 5]]],
        [[[6, 1], [3, 5]], [[0, 2], [4, 6]]],
    ]


@pytest.mark.parametrize(
    ("settings", "rank", "micro_batch", "expected"),
    [
        ({}, 0, 0, Share(0, 2, 2, 4, True)),
        ({"tail": "pad"}, 0, 1, Share(1, 2, 1, 1, True)),
        ({"tail": "pad"}, 1, 1, Share(1, 2, 0, 1, True)),
        ({"tail": "pad", "pad_weight": 1}, 1, 1, Share(1, 2, 2, 4, True)),
        ({"max_per_device": 1}, 1, 0, Share(0, 1, 1, 4, False)),
        ({"max_per_device": 1}, 1, 1, Share(0, 1, 1, 4, True)),
        ({"tail": "pad", "max_per_device": 1}, 0, 3, Share(1, 1, 0, 1, True)),
    ],
)
def test_shares_of_five_rows(settings, rank, micro_batch, expected):
    assert world(5, 4, 2, **settings)[rank].share(micro_batch) == expected


@pytest.mark.parametrize("micro_batch", [2, -1])
def test_a_share_outside_the_pass_is_an_index_error(micro_batch):
    with pytest.raises(
        IndexError, match=f"micro_batch={micro_batch} lies outside .* epoch 0, which has 2 micro-batches"
    ):
        world(10, 4, 2)[0].share(micro_batch)


@pytest.mark.parametrize(
    ("n", "steps", "counted"),
    [(97, {"drop": 3, "pad": 4, "spread": 3, "carry": 3}, {"drop": 96, "pad": 97, "spread": 96, "carry": 96})],
)
def test_97_rows_in_batches_of_32_on_8_ranks(n, steps, counted):
    for tail, count in steps.items():
        batches = global_batches(world(n, 32, 8, tail=tail))
        assert len(batches) == count
        assert sum(len(batch.real) for batch in batches) == counted[tail]


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
@pytest.mark.parametrize(
    ("n", "size", "maximum"), [(26, 6, None), (26, 24, None), (97, 32, 8), (145, 48, 7), (5, 4, 2), (24, 12, 4)]
)
def test_the_contract_holds_for_every_tail(tail, n, size, maximum):
    def make(rank, ranks):
        return FixedGlobalBatchSampler(n, size, rank, ranks, tail=tail, min_per_device=1, max_per_device=maximum)

    check_contract(make, (1, 2, 3, 4), epochs=3)


@pytest.mark.parametrize(("n", "size"), [(26, 6), (97, 32), (105, 32), (3, 4)])
def test_a_spread_tail_starves_nobody(n, size):
    check_no_starved_rank(
        lambda rank, ranks: FixedGlobalBatchSampler(n, size, rank, ranks, tail="spread", min_per_device=1), (1, 2, 3)
    )


def test_a_whole_pass_moves_on_by_itself():
    sampler = world(22, 5, 1)[0]
    passes = [list(sampler) for _ in range(3)]
    assert len({str(rows) for rows in passes}) == 3
    assert sampler.epoch == 2


def test_an_abandoned_pass_is_repeated():
    sampler = world(22, 5, 1)[0]
    first = list(islice(sampler, 2))
    assert list(islice(sampler, 2)) == first
    assert sampler.epoch == 0


def test_a_pass_is_whole_when_its_last_micro_batch_was_drawn():
    sampler = world(22, 5, 1)[0]
    list(islice(sampler, len(sampler)))
    iter(sampler)
    assert sampler.epoch == 1


def test_an_old_iterator_does_not_end_a_new_pass():
    sampler = world(22, 5, 1)[0]
    old, _ = iter(sampler), iter(sampler)
    list(old)
    iter(sampler)
    assert sampler.epoch == 0


def test_set_epoch_chooses_and_replays():
    sampler = world(22, 5, 1)[0]
    passes = [list(sampler) for _ in range(3)]
    sampler.set_epoch(1)
    assert list(sampler) == passes[1]
    sampler.set_epoch(1)
    assert list(sampler) == passes[1]
    assert list(sampler) == passes[2]


def test_len_speaks_of_the_next_pass():
    sampler = world(Sequential(7), 4, 1, tail="carry")[0]
    for expected in (1, 2, 2, 2, 1, 2):
        assert len(sampler) == expected
        assert len(list(sampler)) == expected


@given(
    st.tuples(st.integers(1, 200), st.integers(1, 64), st.integers(1, 8)),
    st.sampled_from(["drop", "pad", "spread", "carry"]),
    st.integers(1, 4),
    st.none() | st.integers(1, 32),
)
@settings(deadline=None, max_examples=200)
def test_what_is_accepted_keeps_the_contract(numbers, tail, minimum, maximum):
    n, size, ranks = numbers
    try:
        samplers = world(n, size, ranks, tail=tail, min_per_device=minimum, max_per_device=maximum)
    except ValueError:
        return
    for epoch in range(2):
        batches = global_batches(samplers)
        assert [batch.step for batch in batches] == list(range(len(batches)))
        for batch in batches:
            sizes = [len(rows) for share in batch.shares for rows in share]
            assert minimum <= min(sizes) <= max(sizes) <= (maximum or size)
        if tail != "carry":
            seen = [row for batch in batches for row in batch.real]
            assert len(set(seen)) == len(seen)
        if tail == "pad":
            assert len({row for batch in batches for row in batch.real}) == n
        assert samplers[0].epoch == epoch


def test_every_row_is_seen_over_the_epochs():
    samplers = world(10, 12, 4, tail="pad") + world(10, 8, 4)
    for batch_of in (samplers[:4], samplers[4:]):
        seen = {row for _ in range(50) for sampler in batch_of for rows in sampler for row in rows}
        assert seen == set(range(10))


def test_the_random_states_of_the_caller_are_untouched():
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    list(world(500, 32, 1)[0])
    assert states == [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002


@pytest.mark.usefixtures("collected")
def test_a_loader_with_workers_sees_the_same_rows():
    data = list(range(40))
    wanted = [torch.tensor(rows) for rows in world(data, 8, 2)[1]]
    found = list(DataLoader(data, batch_sampler=world(data, 8, 2)[1], num_workers=2))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_indices_are_plain_ints_and_every_keyword_has_its_name():
    sampler = FixedGlobalBatchSampler(
        range(32), global_size=16, rank=0, world_size=1, seed=0, tail="drop", min_per_device=16, max_per_device=None
    )
    assert {type(row) for rows in sampler for row in rows} == {int}


class Sized:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((10, 12), {}, "global_size=12 with tail='drop' leaves no whole global batch in n=10 rows: lower global_size"),
        ((0, 4), {}, "source=0 is too small: it must be at least 1; give a dataset with rows"),
        (([], 4), {}, "source=list: n=0 is too small"),
        ((-5, 4), {}, "source=-5 is too small"),
        ((10.0, 4), {}, "source=10.0 is of type float"),
        ((True, 4), {}, "source=True is a bool"),
        (("10", 4), {}, "source='10' is a text: give a dataset, its number of rows, or an order"),
        ((None, 4), {}, "source=None is of type NoneType"),
        ((10, 4.0), {}, "global_size=4.0 is of type float"),
        ((10, 4), {"tail": "wrap"}, "tail='wrap' is unknown: it must be one of drop, pad, spread, carry"),
        ((10, 4), {"pad_weight": 0.5}, "pad_weight=0.5 is of type float"),
        ((10, 4), {"pad_weight": 1.0}, "pad_weight=1.0 is of type float: it must be a whole number; give 0"),
        ((10, 4), {"pad_weight": np.array([1, 2])}, r"pad_weight=array\(\[1, 2\]\) is of type ndarray"),
        ((10, 4), {"pad_weight": np.bool_(1)}, "pad_weight=.*True.* is a bool"),
        ((10, 4), {"pad_weight": 2}, "pad_weight=2 is too large: it must be at most 1"),
        ((10, 4), {"dataset": 5}, "dataset=5 is no dataset: give the one whose rows are drawn, or leave it out"),
        ((10**19, 4), {}, "source=10000000000000000000 is too large: it must be at most 4611686018427387904"),
        ((Sized(-1), 4), {}, r"source=Sized has no length \(ValueError.*: give a dataset with rows"),
        ((Sized(None), 4), {}, r"source=Sized has no length \(TypeError"),
        ((10, 4), {"seed": 1.5}, "seed=1.5 is of type float"),
        ((10, 4), {"allow_global_size_change": 1}, "allow_global_size_change=1: it must be True or False"),
        ((10, 4), {"min_per_device": 5}, "global_size=4 is smaller than min_per_device=5"),
        ((10, 4, 2, 3), {"min_per_device": 2}, "rank=2 would idle: global_size=4 gives min_per_device=2 rows to 2 of"),
        ((10, 4, 4, 4), {}, "rank=4 lies outside world_size=4"),
        ((Shuffled(10, 3), 4), {"seed": 4}, "seed=4 contradicts the order, which was made with seed=3"),
        ((Stream(), 4), {}, "source=Stream is an IterableDataset"),
        ((DataLoader(range(10)), 4), {}, "source=DataLoader is a loader: give the dataset"),
    ],
)
def test_wrong_settings(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        FixedGlobalBatchSampler(*arguments, **{"min_per_device": 1, **settings})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            DistributedSampler(range(10), 2, 0),
            "is a sampler that already deals to ranks, and its rows would be dealt again",
        ),
        (FixedGlobalBatchSampler(10, 4, 0, 1, min_per_device=1), "is a sampler that already deals to ranks"),
        (BatchSampler(DistributedSampler(range(10), 2, 0), 2, drop_last=False), "is a sampler that already deals"),
        (
            BatchSampler(RandomSampler(range(10)), 2, drop_last=False),
            "is a sampler that yields batches: give the sampler",
        ),
    ],
)
def test_a_sampler_that_already_deals_is_refused(source, message):
    with pytest.raises(TypeError, match=f"source={type(source).__name__} {message}"):
        FixedGlobalBatchSampler(source, 4, 0, 1, min_per_device=1)


@pytest.mark.parametrize("make", [lambda: world(10, 4, 2)[0], lambda: ExactlyOnceSampler(10, 4, 0, 2)])
def test_who_would_deal_again_is_told_so(make):
    with pytest.raises(
        ValueError, match=r"batch_size of \w+Sampler was asked for: it already deals to world_size=2 ranks"
    ):
        make().batch_size  # noqa: B018 - reading it is the test


def test_in_one_rank_there_is_a_largest_micro_batch():
    assert world(10, 7, 1, max_per_device=4)[0].batch_size == 4


def test_an_abandoned_pass_is_said_once_it_is_repeated(caplog):
    sampler = world(22, 5, 1)[0]
    next(iter(sampler))
    assert not caplog.records
    iter(sampler)
    assert "epoch 0 was abandoned after 1 of 4 micro-batches and is repeated; call set_epoch" in caplog.text


@pytest.mark.parametrize(
    ("drawn", "described", "said"), [(4, None, "none of 4"), (5, 1, "2 of 4"), (5, None, None), (5, 3, None)]
)
def test_moving_on_without_a_word_from_training_is_said(drawn, described, said, caplog):
    sampler = world(22, 5, 1)[0]
    list(islice(sampler, drawn))
    if described is not None:
        sampler.share(described)
    iter(sampler)
    assert sampler.epoch == 1
    assert [record.message.count(f"asked about: {said}") for record in caplog.records] == [1] * (said is not None)


@pytest.mark.parametrize(
    ("source", "rank", "settings", "said"),
    [
        (22, 0, {}, ["tail='drop' leaves 2 of 22 rows out of every epoch"]),
        (22, 1, {}, []),
        (23, 0, {"tail": "spread", "min_per_device": 2}, ["tail='spread' leaves 3 of 23 rows out of every epoch"]),
        (22, 0, {"tail": "pad"}, []),
        (20, 0, {}, []),
        (Grouped([0] * 13 + [1] * 12), 0, {}, ["Grouped leaves 5 rows out of every epoch"]),
    ],
)
def test_rows_that_are_left_out_are_said_once(source, rank, settings, said, caplog):
    caplog.set_level("INFO", logger="samplers")
    sampler = world(source, 10 if isinstance(source, Grouped) else 5 if source != 23 else 4, 2, **settings)[rank]
    list(sampler)
    list(sampler)
    assert [record.message for record in caplog.records] == said


def test_who_has_read_the_report_is_not_told_again(caplog):
    caplog.set_level("INFO", logger="samplers")
    sampler = world(22, 5, 1)[0]
    assert sampler.report().rows_dropped == 2
    list(sampler)
    assert not caplog.records


def test_an_order_with_the_same_seed_is_accepted():
    assert FixedGlobalBatchSampler(Shuffled(10, 3), 4, 0, 1, seed=3, min_per_device=1).order.seed == 3


def test_three_rows_in_a_global_batch_of_four_are_one_step_with_one_padded_row():
    (batch,) = global_batches(world(3, 4, 2, tail="pad"))
    assert (batch.rows, batch.real) == (4, (0, 1, 2))


def test_three_rows_cannot_train_seven_ranks():
    with pytest.raises(ValueError, match="global_size=7 with tail='drop' leaves no whole global batch in n=3 rows"):
        world(3, 7, 7)
    with pytest.raises(
        ValueError, match="rank=3 would idle: global_size=3 gives min_per_device=1 rows to 3 of world_size=7"
    ):
        world(3, 3, 7)


def test_a_sampler_can_be_pickled():
    sampler = world(22, 5, 1)[0]
    next(iter(sampler))
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_numpy_integers_are_accepted():
    sampler = FixedGlobalBatchSampler(np.int64(10), np.int32(4), np.int8(0), np.int8(1), min_per_device=np.int64(1))
    assert len(sampler) == 2


def test_a_world_of_thousands_costs_as_little_as_one_of_two():
    big = FixedGlobalBatchSampler(10**9, 1 << 22, 4_095, 4_096)
    assert len(next(iter(big))) == 1_024
    assert big.share(0).global_rows == 1 << 22


@pytest.mark.parametrize(("tail", "last"), [("drop", None), ("pad", [8, 9]), ("spread", [8, 9]), ("carry", None)])
def test_a_global_batch_is_named_by_its_step(tail, last):
    sampler = FixedGlobalBatchSampler(Sequential(10), 4, 1, 2, min_per_device=1, tail=tail)
    batches = [sampler.global_batch(step) for step in range(sampler.report().steps_per_epoch)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], *([last] if last else [])]
    with pytest.raises(IndexError, match=f"step={len(batches)} lies outside the pass of epoch 0"):
        sampler.global_batch(len(batches))


def test_a_global_batch_after_a_resume_and_with_carried_rows():
    sampler = FixedGlobalBatchSampler(Sequential(10), 4, 0, 1, min_per_device=1, tail="carry")
    sampler.load_state_dict(sampler.state_dict(4))
    assert sampler.global_batch(1) == [4, 5, 6, 7]
    with pytest.raises(IndexError, match="from 1 to 1"):
        sampler.global_batch(0)
    sampler.set_epoch(1)
    assert sampler.global_batch(0) == [8, 9, 0, 1]
