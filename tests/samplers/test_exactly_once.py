import pytest
from torch import arange
from torch.utils.data import DataLoader, TensorDataset

from samplers import Bucketed, ExactlyOnceSampler, Shuffled
from samplers.contract import check_exactly_once


@pytest.mark.parametrize(
    ("n", "world_size", "size", "expected"),
    [
        (10, 4, 3, [[[0, 4, 8]], [[1, 5, 9]], [[2, 6]], [[3, 7]]]),
        (3, 7, 64, [[[0]], [[1]], [[2]], [], [], [], []]),
        (5, 2, 2, [[[0, 2], [4]], [[1, 3]]]),
        (4, 1, 2, [[[0, 1], [2, 3]]]),
    ],
)
def test_rows_are_dealt_like_cards(n, world_size, size, expected):
    samplers = [ExactlyOnceSampler(n, size, rank, world_size) for rank in range(world_size)]
    assert [list(sampler) for sampler in samplers] == expected
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in expected]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 5_000])
def test_every_row_once_on_any_number_of_ranks(size):
    for n in [*range(1, 41), 10_001]:
        check_exactly_once(lambda rank, world, n=n: ExactlyOnceSampler(n, size, rank, world), n)


@pytest.mark.parametrize(
    ("n", "world_size", "size", "expected"),
    [
        (10, 3, 3, [[[0, 1, 2], [9]], [[3, 4, 5]], [[6, 7, 8]]]),
        (10, 2, 3, [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9]]]),
        (10, 1, 4, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]),
        (3, 4, 2, [[[0, 1]], [[2]], [], []]),
        (5, 2, 64, [[[0, 1, 2, 3, 4]], []]),
        (3, 5, 1, [[[0]], [[1]], [[2]], [], []]),
    ],
)
def test_whole_batches_are_dealt_like_cards(n, world_size, size, expected):
    samplers = [ExactlyOnceSampler(n, size, rank, world_size, whole_batches=True) for rank in range(world_size)]
    assert [list(sampler) for sampler in samplers] == expected
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in expected]
    assert [sampler.rows for sampler in samplers] == [sum(map(len, batches)) for batches in expected]


@pytest.mark.parametrize("world_size", range(1, 6))
def test_every_whole_batch_is_on_one_rank_whatever_the_world(world_size):
    for n in range(1, 21):
        for size in range(1, 7):
            batches = [list(range(n))[start : start + size] for start in range(0, n, size)]
            for rank in range(world_size):
                sampler = ExactlyOnceSampler(n, size, rank, world_size, whole_batches=True)
                assert list(sampler) == batches[rank::world_size]
                assert (len(sampler), sampler.rows) == (len(list(sampler)), sum(map(len, sampler)))


@pytest.mark.parametrize("size", [1, 7, 64, 5_000])
def test_whole_batches_have_every_row_once(size):
    for n in (1, 40, 10_001):
        check_exactly_once(lambda rank, world, n=n: ExactlyOnceSampler(n, size, rank, world, whole_batches=True), n)


def test_whole_batches_are_those_of_the_order():
    order = Shuffled(11, seed=1)
    (one,), two = _drawn(order, 1), _drawn(order, 2)
    assert sorted(row for batch in one for row in batch) == list(range(11))
    assert (one[0::2], one[1::2]) == tuple(two)


def _drawn(order, world_size):
    return [list(ExactlyOnceSampler(order, 4, rank, world_size, whole_batches=True)) for rank in range(world_size)]


def test_whole_batches_is_a_switch():
    with pytest.raises(ValueError, match="whole_batches='yes': it must be True or False; give a bool"):
        ExactlyOnceSampler(5, 2, 0, 1, whole_batches="yes")


def test_an_order_is_kept():
    sampler = ExactlyOnceSampler(Shuffled(6, seed=1), 10, 0, 1)
    assert sorted(next(iter(sampler))) == list(range(6))
    assert next(iter(sampler)) != list(range(6))


def test_a_metric_is_the_same_on_any_number_of_ranks():
    data = TensorDataset(arange(10))
    for world_size in (1, 2, 3, 4):
        loaders = [
            DataLoader(data, batch_sampler=ExactlyOnceSampler(data, 3, rank, world_size)) for rank in range(world_size)
        ]
        assert sum(int((batch**2).sum()) for loader in loaders for (batch,) in loader) == 285


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "source=0 is too small: it must be at least 1; give a dataset with rows"),
        (([],), "source=list: n=0 is too small"),
        ((5, 0), "batch_size=0 is too small: it must be at least 1; give the most rows of a batch"),
        ((5, 2.0), "batch_size=2.0 is of type float"),
        (
            (Bucketed([1, 2]),),
            "global_size=None of the order Bucketed inside ExactlyOnceSampler, .*: set global_size in",
        ),
        ((5, 2, 3, 2), "rank=3 lies outside world_size=2"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        ExactlyOnceSampler(*arguments)
