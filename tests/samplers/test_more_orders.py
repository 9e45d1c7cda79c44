"""Weighted, grouped and composed orders: the contract of every one, and what is special about each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from launcher.testing import simulate
from samplers import (
    Balanced,
    Bucketed,
    ExactlyOnceSampler,
    FixedGlobalBatchSampler,
    FromSampler,
    Grouped,
    Mixture,
    Repeated,
    Sequential,
    Shuffled,
    Stratified,
    Subset,
    Weighted,
    check_contract,
    check_order,
)
from samplers.contract import global_batches
from samplers.orders import BatchOrder
from samplers.orders.stratified import fair_sequence
from samplers.orders.weighted import alias_table

LABELS = [0] * 30 + [1] * 9 + [2] * 8
ORDERS = {
    "weighted": lambda: Weighted(np.arange(47) + 1.0, seed=3),
    "weighted once": lambda: Weighted(np.arange(47), seed=3, replacement=False),
    "balanced": lambda: Balanced(LABELS, seed=3),
    "stratified": lambda: Stratified(LABELS, seed=3, global_size=8),
    "bucketed": lambda: Bucketed(np.arange(47) % 13, seed=3, global_size=8, pool_batches=2),
    "grouped": lambda: Grouped(LABELS, seed=3, global_size=8),
    "grouped, repeated": lambda: Grouped(LABELS, seed=3, global_size=8, leftover="repeat"),
    "repeated": lambda: Repeated(20, 3, seed=3, num_rows=50),
    "repeated, numbered": lambda: Repeated(20, 3, seed=3, numbered=True),
    "subset": lambda: Subset(range(3, 60, 2), seed=3),
    "mixture": lambda: Mixture([30, Sequential(11), 5], [5, 3, 1], seed=3),
    "from sampler": lambda: FromSampler(RandomSampler(range(47)), seed=3),
}


def whole(order, epoch=0):
    return order.indices(epoch, np.arange(len(order)))


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_keeps_the_contract(name):
    order = ORDERS[name]()
    check_order(order, epochs=3)
    for tail in ("drop", "pad") if isinstance(order, BatchOrder) and len(order) % 8 else ("drop", "pad", "carry"):
        check_contract(
            lambda rank, ranks, tail=tail: FixedGlobalBatchSampler(
                ORDERS[name](), 8, rank, ranks, tail=tail, min_per_device=1, max_per_device=3
            ),
            (1, 2, 3),
        )


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "subset"])
def test_every_epoch_is_another(name):
    assert whole(ORDERS[name](), 0).tolist() != whole(ORDERS[name](), 1).tolist()


@given(st.lists(st.floats(0, 1e6) | st.integers(0, 3), min_size=1, max_size=60).filter(any))
@settings(deadline=None)
def test_the_alias_table_holds_the_weights(weights):
    share = np.asarray(weights, dtype=float)
    stay, other = alias_table(share)
    found = np.bincount(other, weights=1 - stay, minlength=share.size) + stay
    assert np.allclose(found, share / share.max() * share.size / (share / share.max()).sum(), atol=1e-9)
    assert ((stay >= 0) & (stay <= 1)).all()


def test_weights_are_met_and_a_weight_of_zero_is_never_drawn():
    order = Weighted([1, 0, 3, 4], seed=5, num_rows=80_000)
    counts = np.bincount(whole(order), minlength=4) / 10_000
    assert counts[1] == 0
    assert np.allclose(counts, [1, 0, 3, 4], atol=0.06)


def test_without_replacement_no_row_comes_twice_and_heavy_rows_come_first():
    first = np.zeros(4)
    for seed in range(2_000):
        rows = whole(Weighted([1, 0, 3, 4], seed=seed, replacement=False))
        assert sorted(rows.tolist()) == [0, 2, 3]
        first[rows[0]] += 1
    assert np.allclose(first / 250, [1, 0, 3, 4], atol=0.35)


def test_balanced_has_every_class_once_in_each_round():
    labels = np.array(LABELS)
    order = Balanced(LABELS, seed=1, num_rows=90)
    rounds = labels[whole(order)].reshape(30, 3)
    assert (np.sort(rounds, axis=1) == [0, 1, 2]).all()
    assert len({tuple(row) for row in rounds.tolist()}) > 3
    assert np.unique(whole(order)[labels[whole(order)] == 0]).size == 30


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7))
@settings(deadline=None)
def test_every_prefix_of_a_fair_sequence_is_in_proportion(counts):
    sequence = fair_sequence(np.array(counts))
    share = np.array(counts) / sum(counts)
    seen = np.cumsum(sequence[:, None] == np.arange(len(counts)), axis=0)
    ideal = np.arange(1, len(sequence) + 1)[:, None] * share
    assert (np.abs(seen - ideal) < 1 - 1e-9).all()


def test_one_large_and_many_small_classes_stay_in_proportion():
    labels = np.array([0] * 900 + list(range(1, 101)))
    rows = whole(Stratified(labels, seed=2, global_size=50)).reshape(-1, 50)
    assert sorted(rows.reshape(-1).tolist()) == list(range(1000))
    large = (labels[rows] == 0).sum(axis=1)
    assert (np.abs(np.cumsum(large) - 45 * np.arange(1, 21)) < 1).all()


def test_stratified_deals_every_class_to_every_rank():
    order = Stratified(["a", "b"] * 500, seed=0)
    rows = [list(FixedGlobalBatchSampler(order, 100, rank, 2)) for rank in range(2)]
    assert all({row % 2 for row in micro_batch} == {0, 1} for share in rows for micro_batch in share)


def test_bucketed_batches_have_rows_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 1000, 2_010)
    rows = whole(Bucketed(lengths, global_size=20, pool_batches=50))
    assert sorted(rows.tolist()) == list(range(2_010))
    spread = np.ptp(lengths[rows[:2_000].reshape(-1, 20)], axis=1)
    assert spread.mean() < 30
    means = lengths[rows[:2_000].reshape(-1, 20)].mean(axis=1)
    assert abs(np.corrcoef(means, np.arange(100))[0, 1]) < 0.3


def test_grouped_micro_batches_come_from_one_group():
    labels = np.array(LABELS)
    for leftover, seen in (("drop", 24 + 8 + 8), ("repeat", 47)):
        order = Grouped(LABELS, seed=2, global_size=8, leftover=leftover)
        batches = whole(order).reshape(-1, 8)
        assert all(len(set(labels[batch].tolist())) == 1 for batch in batches)
        assert np.unique(batches).size == seen
        assert order.rows_left_out == 47 - seen


def test_the_sampler_fills_the_global_size_in():
    order = Grouped(LABELS)
    sampler = FixedGlobalBatchSampler(order, 8, 0, 1, min_per_device=1)
    assert len(sampler) == 5
    assert order.global_size is None


def test_copies_stand_in_one_global_batch_on_different_ranks():
    samplers = [FixedGlobalBatchSampler(Repeated(8, 2), 4, rank, 2, min_per_device=1) for rank in range(2)]
    assert list(samplers[0]) == list(samplers[1])


def test_numbered_copies_are_indices_of_their_own():
    assert Repeated(Sequential(3), 2, numbered=True).indices(0, np.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_mixture_keeps_its_proportions_in_every_prefix():
    order = Mixture([Sequential(100), Sequential(100), Sequential(100)], [6, 3, 1], num_rows=1_000)
    source = whole(order) // 100
    for number, share in enumerate((0.6, 0.3, 0.1)):
        ahead = np.cumsum(source == number) - share * np.arange(1, 1_001)
        assert np.abs(ahead).max() < 2


def test_a_mixture_draws_each_source_to_its_end_before_it_starts_again():
    order = Mixture([10, 1_000], [1, 1], seed=1, num_rows=40)
    rows = np.concatenate([whole(order, epoch) for epoch in range(50)])
    large = rows[rows >= 10]
    assert np.unique(large).size == 1_000
    small = rows[rows < 10].reshape(-1, 10)
    assert (np.sort(small, axis=1) == np.arange(10)).all()
    assert len({tuple(row) for row in small.tolist()}) > 90


def test_a_mixture_indexes_the_concatenation():
    data = ConcatDataset([range(5), range(100, 110)])
    order = Mixture([Subset([0, 1]), 10], [1, 1], num_rows=20, sizes=[5, 10])
    values = {data[row] for row in whole(order).tolist()}
    assert values == {0, 1, *range(100, 110)}


def test_a_mixture_of_huge_sources_enters_anywhere():
    order = Mixture([10**12, 10**9], [9, 1])
    rows = order.indices(1, np.array([0, 10**12]))
    assert ((rows >= 0) & (rows < 10**12 + 10**9)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(range(20)),
        lambda: RandomSampler(range(20), generator=torch.Generator().manual_seed(torch.seed())),
        lambda: SubsetRandomSampler(range(0, 40, 2)),
        lambda: WeightedRandomSampler([0.1, 0.5, 0.4], 20),
    ],
)
def test_a_torch_sampler_draws_the_same_on_every_rank(make):
    drawn = [whole(FromSampler(make(), seed=4), 2).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != whole(FromSampler(make(), seed=5), 2).tolist()


def test_a_wrapped_sampler_keeps_its_order():
    class Given(Sampler):
        def __iter__(self):
            return iter(range(8))

        def __len__(self):
            return 8

    samplers = [FixedGlobalBatchSampler(Given(), 8, rank, 2, min_per_device=1) for rank in range(2)]
    assert [list(sampler) for sampler in samplers] == [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]


def test_a_sampler_that_yields_another_number_of_rows_is_refused():
    class Short(Sampler):
        def __iter__(self):
            return iter(range(7))

        def __len__(self):
            return 8

    with pytest.raises(ValueError, match="source=Short yields 7 rows in epoch 0, len says 8"):
        whole(FromSampler(Short()))


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Weighted([1, -1]), r"weights\[1\]=-1.0: a weight must be a finite number, 0 or more; 1 of 2"),
        (lambda: Weighted([1, NAN]), r"weights\[1\]=nan"),
        (lambda: Weighted([1, float("inf")]), r"weights\[1\]=inf"),
        (lambda: Weighted([0, 0]), "weights are 0 for all 2 rows: give at least one row a weight"),
        (lambda: Weighted([]), r"weights has shape \(0,\)"),
        (lambda: Weighted([[1, 2]]), r"weights has shape \(1, 2\): it must be one-dimensional"),
        (lambda: Weighted(["a"]), "weights holds values of type <U1: each must be a number"),
        (lambda: Weighted([1, 2], num_rows=0), "num_rows=0 is too small"),
        (
            lambda: Weighted([1, 0], replacement=False, num_rows=2),
            "num_rows=2 exceeds the number of rows that have a weight, 1, ",
        ),
        (lambda: Weighted([1], replacement=1), "replacement=1: it must be True or False"),
        (lambda: Weighted([1], seed=0.5), "seed=0.5 is of type float"),
        (lambda: Balanced([0.5, 1.5]), "labels holds values of type float64: each must be a whole number or a text"),
        (lambda: Balanced([]), r"labels has shape \(0,\)"),
        (lambda: Stratified([1], global_size=0), "global_size=0 is too small"),
        (lambda: whole(Stratified([1])), "global_size=None of the order Stratified: give it to a sampler"),
        (lambda: Bucketed([1, -2]), r"lengths\[1\]=-2.0: a length must be a finite number"),
        (lambda: Bucketed([1], pool_batches=0), "pool_batches=0 is too small"),
        (lambda: Grouped(LABELS, leftover="keep"), "leftover='keep' is unknown: it must be 'drop' or 'repeat'"),
        (lambda: Grouped(LABELS, global_size=9), "global_size=9 exceeds the 8 rows of the smallest of 3 groups"),
        (lambda: Repeated(3, 0), "times=0 is too small"),
        (lambda: Repeated(3, 2, num_rows=7), "num_rows=7 exceeds times=2 x 3 rows"),
        (lambda: Subset([-1]), r"indices\[0\]=-1: an index must be 0 or more"),
        (
            lambda: Subset(np.array([0, 2**63], dtype=np.uint64)),
            r"indices\[1\]=9223372036854775808: an index must be at most 4611686018427387904; give rows that exist",
        ),
        (lambda: Subset([0.5]), "indices holds values of type float64"),
        (lambda: Subset([1], shuffle=None), "shuffle=None: it must be True or False"),
        (lambda: Mixture([], []), r"proportions has shape \(0,\)"),
        (lambda: Mixture([3, 4], [1]), "proportions has 1 values for 2 sources: give one for each"),
        (lambda: Mixture([3, 4], [1, 0]), r"proportions\[1\]=0.0: a proportion must be more than 0"),
        (lambda: Mixture([3, 4], [1, 1], sizes=[3]), "sizes has 1 values for 2 sources"),
        (lambda: Mixture(5, [1]), "sources=5 is no sequence: give a list"),
        (lambda: Mixture(None, [1]), "sources=None is no sequence"),
        (lambda: Mixture([5], [1], sizes=3), "sizes=3 is no sequence: give the rows of each dataset"),
        (
            lambda: Mixture([10, 10], [1, 1], sizes=[3, 10]),
            r"sizes\[0\]=3 is below the 10 rows that Shuffled draws from: give the rows of the dataset",
        ),
        (lambda: Mixture([5, Subset([1, 7])], [1, 1], sizes=[5, 7]), r"sizes\[1\]=7 is below the 8 rows that Subset"),
        (lambda: Mixture([Subset([1, 7]), 5], [1, 1]), r"sizes\[0\]=None, and Subset does not say how many rows"),
        (lambda: Mixture([FromSampler(SubsetRandomSampler([3]))], [1]), r"sizes\[0\]=None, and FromSampler does not"),
        (
            lambda: whole(Mixture([FromSampler(SubsetRandomSampler([9])), 5], [1, 1], sizes=[8, 5])),
            r"sizes\[0\]=8, but row 9 was drawn",
        ),
        (lambda: Mixture([5, 6], [1, 1], num_rows=2**64), "num_rows=18446744073709551616 is too large"),
        (lambda: Mixture([2**62, 2**62], [1, 1]), "sizes: their sum=9223372036854775808 is too large"),
        (lambda: Repeated(2**40, 2**40), "num_rows=1208925819614629174706176 is too large"),
        (lambda: Repeated(2, 2**63), "times=9223372036854775808 is too large"),
        (lambda: Repeated(5, 2, num_rows=0), "num_rows=0 is too small: it must be at least 1; give the positions"),
        (lambda: Repeated(Subset([5, 7]), 2, numbered=True), "size=None, and Subset does not say how many rows"),
        (lambda: Repeated(Subset([5, 7]), 2, numbered=True, size=7), "size=7 is below the 8 rows that Subset"),
        (
            lambda: Repeated(Bucketed([1, 2]), 2),
            "global_size=None of the order Bucketed inside Repeated, .*: set global_size in the inner order",
        ),
        (lambda: Mixture([Grouped(LABELS)], [1]), "global_size=None of the order Grouped inside Mixture"),
        (lambda: Shuffled(2**62 + 1), "n=4611686018427387905 is too large: it must be at most 4611686018427387904"),
        (lambda: Sequential(10**19), "n=10000000000000000000 is too large"),
        (lambda: Weighted(torch.ones(3).to_sparse()), "weights of type Tensor is no column of values"),
        (lambda: FromSampler("abc"), "source='abc' is no sampler: give one that yields"),
        (lambda: FromSampler(5), "source=5 is no sampler"),
        (
            lambda: whole(FromSampler([[1, 2], [3, 4]])),
            "source=list yields something else than indices of rows .*: give a sampler of single rows",
        ),
        (lambda: FromSampler(SubsetRandomSampler([])), "source=SubsetRandomSampler: n=0 is too small"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_sampler_and_its_order_must_have_one_global_size():
    with pytest.raises(
        ValueError, match="global_size=4 of the sampler differs from global_size=8 of the order Stratified"
    ):
        FixedGlobalBatchSampler(Stratified(LABELS, global_size=8), 4, 0, 1, min_per_device=1)


def test_carry_would_shift_an_order_made_for_global_batches():
    with pytest.raises(ValueError, match="tail='carry' with the order Bucketed of n=47 rows"):
        FixedGlobalBatchSampler(Bucketed(range(47)), 8, 0, 1, min_per_device=1, tail="carry")


def test_a_state_of_other_weights_is_refused():
    state = FixedGlobalBatchSampler(Weighted([1, 2, 3]), 2, 0, 1, min_per_device=1).state_dict(2)
    with pytest.raises(ValueError, match=r"order: state .*'weights': '.*'}, this sampler .*'weights': '"):
        FixedGlobalBatchSampler(Weighted([1, 2, 4]), 2, 0, 1, min_per_device=1).load_state_dict(state)


def test_weights_may_be_a_tensor():
    assert len(Weighted(torch.tensor([0.1, 0.9]))) == 2


def test_weights_may_need_a_gradient():
    assert len(Weighted(torch.ones(3, requires_grad=True))) == 3


def test_a_weight_of_zero_is_never_drawn_even_beside_the_smallest_weights():
    for seed in range(20):
        assert whole(Weighted([0, 1.0, 1e-320, 5e-324], seed, replacement=False)).tolist()[:1] == [1]
        assert 0 not in whole(Weighted([0, 1.0, 1e-320, 5e-324], seed, replacement=False))


def test_numbered_copies_are_apart_by_the_rows_of_the_dataset():
    order = Repeated(Subset([5, 7], shuffle=False), 2, numbered=True, size=8)
    assert whole(order).tolist() == [5, 13, 7, 15]
    weighted = Repeated(Weighted([1, 1, 1], num_rows=1), 2, numbered=True)
    first, second = whole(weighted)
    assert second - first == 3


def test_a_mixture_puts_sources_apart_by_the_rows_of_their_datasets():
    order = Mixture([Weighted([0, 0, 1], num_rows=2), Repeated(2, 3, numbered=True), Sequential(4)], [1, 1, 1])
    assert order.dataset_rows == 3 + 6 + 4
    assert [int(rows) for rows in (order.identity()["offsets"])] == [0, 3, 9]


def test_a_torch_sampler_says_how_many_rows_its_dataset_has():
    order = Mixture([RandomSampler(range(9), replacement=True, num_samples=3), Sequential(2)], [3, 2])
    assert order.identity()["offsets"] == [0, 9]


def test_a_mixture_of_late_epochs_is_no_overflow():
    rows = Mixture([3, 4], [1, 1]).indices(2**62, np.arange(7))
    assert sorted(set(rows.tolist()) | set(range(7))) == list(range(7))


def test_the_seed_of_a_repeated_order_is_that_inside():
    assert Repeated(5, 2, seed=3).seed == 3
    with pytest.raises(ValueError, match="seed=99 contradicts the order, which was made with seed=3"):
        FixedGlobalBatchSampler(Repeated(5, 2, seed=3), 2, 0, 1, seed=99, min_per_device=1)
    for order in (Sequential(5), Repeated(Sequential(5), 2)):
        with pytest.raises(ValueError, match=f"seed=99 has no effect on {type(order).__name__}: leave it out"):
            FixedGlobalBatchSampler(order, 2, 0, 1, seed=99, min_per_device=1)


@pytest.mark.parametrize(
    "other",
    [
        WeightedRandomSampler([1, 9, 1], 3),
        WeightedRandomSampler([1, 1, 1], 3, replacement=False),
        WeightedRandomSampler(torch.tensor([1.0, 1, 2]), 3),
    ],
)
def test_a_state_of_a_sampler_with_other_settings_is_refused(other):
    state = FixedGlobalBatchSampler(WeightedRandomSampler([1, 1, 1], 3), 2, 0, 1, min_per_device=1).state_dict(2)
    same = FixedGlobalBatchSampler(WeightedRandomSampler([1, 1, 1], 3), 2, 0, 1, min_per_device=1)
    same.load_state_dict(state)
    with pytest.raises(ValueError, match=r"order: state .*'settings': "):
        FixedGlobalBatchSampler(other, 2, 0, 1, min_per_device=1).load_state_dict(state)


class Own(Sampler):
    """Draws from a generator that nobody can seed."""

    def __init__(self, n=12):
        self.n, self.random = n, np.random.default_rng()

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(self.random.permutation(self.n).tolist())


def own_rows():
    """All that this rank draws in two epochs from samplers that draw otherwise on every rank."""
    makes = (
        lambda: FixedGlobalBatchSampler(Own(), 6, min_per_device=1),
        lambda: FixedGlobalBatchSampler(Own(14), 6, min_per_device=1, tail="carry"),
        lambda: FixedGlobalBatchSampler(Repeated(Own(), 1), 6, min_per_device=1),
        lambda: FixedGlobalBatchSampler(
            Mixture([Own(2), Own(3)], [2, 1], num_rows=12, sizes=[2, 3]), 6, min_per_device=1
        ),
        lambda: ExactlyOnceSampler(Own(), 4),
        lambda: ExactlyOnceSampler(Repeated(Own(), 1), 4),
    )
    samplers = [make() for make in makes]
    return [[[row for rows in sampler for row in rows] for _ in range(2)] for sampler in samplers]


def test_a_sampler_that_draws_from_elsewhere_is_drawn_once_for_all_ranks_wherever_it_stands():
    direct, carried, repeated, mixed, once, once_repeated = zip(*simulate(2, own_rows), strict=True)
    for first, second in (direct, repeated, once, once_repeated):
        for one, other in zip(first, second, strict=True):
            assert sorted(one + other) == list(range(12))
    opening = [rows for one, other in zip(*carried, strict=True) for rows in (one + other)]
    assert len(opening) == 12 + 12
    assert all(opening.count(row) <= 2 for row in range(14))
    small = np.bincount([row for one, other in zip(*mixed, strict=True) for row in one + other], minlength=5)
    assert small.tolist() == [8, 8, small[2], small[3], small[4]]
    assert small[2:].max() - small[2:].min() <= 1


def test_shuffled_rows_of_every_epoch_are_real():
    samplers = [FixedGlobalBatchSampler(Shuffled(47, 1), 8, rank, 3, min_per_device=1, tail="pad") for rank in range(3)]
    assert sorted(row for batch in global_batches(samplers) for row in batch.real) == list(range(47))
