"""Bijection, and the statistics of the shuffle over many seeds."""

from functools import cache

import numpy as np
import pytest

from samplers import Shuffled
from samplers.permutation import feistel, small_permutation, words_from

SEEDS = 1_000
NUMBERS = [10, 1_000, 65_535, 65_537, 1_000_003]


def feistel_of(n, seed=0):
    return feistel(np.arange(n, dtype=np.int64), n, words_from("test", seed, count=8))


@pytest.mark.parametrize("first", range(1, 5_001, 500))
def test_both_methods_are_bijections_for_every_small_number(first):
    for n in range(first, first + 500):
        whole = np.arange(n)
        assert np.array_equal(np.sort(feistel_of(n, n)), whole)
        assert np.array_equal(np.sort(small_permutation(n, words_from("test", n, count=2))), whole)


@pytest.mark.parametrize("n", [65_535, 65_536, 65_537, 131_072, 1_000_003])
def test_a_whole_epoch_is_a_permutation(n):
    assert np.array_equal(np.sort(Shuffled(n, seed=3).indices(1, np.arange(n))), np.arange(n))


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12, 2**40, 2**40 + 1, 2**62])
def test_large_orders_stay_inside_and_never_repeat(n):
    positions = np.unique(np.random.default_rng(0).integers(0, n, 100_000))
    rows = Shuffled(n, seed=1).indices(0, positions)
    assert rows.min() >= 0
    assert rows.max() < n
    assert len(np.unique(rows)) == len(positions)


def chi_square(counts):
    """Standard score of the chi-square statistic of uniform counts."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@cache
def rows_of_many_seeds(n):
    """Rows at ten positions spread over the epoch, and at the positions behind nine of them: int64 [seeds, 19]."""
    positions = np.linspace(0, n - 1, 10).astype(np.int64)
    asked = np.concatenate([positions, positions[:-1] + 1])
    return np.stack([Shuffled(n, seed).indices(seed % 3, asked) for seed in range(SEEDS)])


@pytest.mark.parametrize("n", NUMBERS)
def test_every_position_gets_every_row_equally_often(n):
    scores = [chi_square(np.bincount(rows * 10 // n, minlength=10)) for rows in rows_of_many_seeds(n).T[:10]]
    assert max(scores) < 4.5
    assert abs(np.mean(scores)) < 1.5


@pytest.mark.parametrize("n", NUMBERS)
def test_neighbours_are_as_far_apart_as_in_a_random_permutation(n):
    rows = rows_of_many_seeds(n)
    distance = (rows[:, 10:] - rows[:, :9]) % n
    scores = [chi_square(np.bincount(column, minlength=9)) for column in ((distance - 1) * 9 // (n - 1)).T]
    assert max(scores) < 4.5
    assert abs(np.mean(scores)) < 1.5


@pytest.mark.parametrize(
    ("n", "first"),
    [
        (8, [7, 0, 6, 5, 3, 1, 4, 2]),
        (10**9, [510639089, 30501328, 480394753]),
    ],
)
def test_orders_stay_what_they_were(n, first):
    assert Shuffled(n, seed=0).indices(0, np.arange(len(first))).tolist() == first
