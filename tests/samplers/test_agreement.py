"""Ranks that disagree are told so at the start of a pass, on real processes."""

import os

import numpy as np
import pytest
from torch import distributed
from torch.utils.data import Sampler

from launcher.testing import simulate
from samplers import FixedGlobalBatchSampler, FromSampler, Sequential
from samplers.agreement import compares_ranks


def drawn(**by_rank):
    """Rows of one pass on this rank; settings are lists with a value for each rank."""
    rank = distributed.get_rank()
    settings = {"global_size": 8, "min_per_device": 1, **{name: values[rank] for name, values in by_rank.items()}}
    epoch = settings.pop("epoch", 0)
    sampler = FixedGlobalBatchSampler(settings.pop("n", 40), **settings)
    sampler.set_epoch(epoch)
    return [list(sampler), list(sampler)]


def test_ranks_that_agree_go_on():
    first, second = simulate(2, drawn)
    assert sorted(row for rows in first[0] + second[0] for row in rows) == list(range(40))
    assert first[1] != first[0]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("seed", [1, 2], r"order: rank \d has .*'seed': \d.*, rank \d has .*'seed': \d"),
        ("epoch", [0, 3], r"'epoch': \d.* set the same epoch on all"),
        ("n", [40, 41], "n: rank . has 4., rank . has 4."),
        ("max_per_device", [4, 2], "max_per_device"),
        ("tail", ["drop", "pad"], "tail: rank"),
    ],
)
def test_ranks_that_differ_are_told_what_differs(name, values, message):
    with pytest.raises(ValueError, match=message):
        simulate(2, lambda: drawn(**{name: values}))


class Private(Sampler):
    """Draws from the entropy of the machine, so no two ranks would agree by themselves."""

    def __iter__(self):
        generator = np.random.default_rng(int.from_bytes(os.urandom(8), "big"))
        return iter(generator.permutation(24).tolist())

    def __len__(self):
        return 24


@pytest.mark.parametrize("tail", ["drop", "carry"])
def test_rank_0_draws_for_all_where_a_sampler_cannot_be_repeated(tail):
    def both():
        sampler = FixedGlobalBatchSampler(FromSampler(Private()), 7, tail=tail, min_per_device=1)
        return [list(sampler), list(sampler)]

    first, second = simulate(2, both)
    rows = sorted(row for rank in (first, second) for micro_batch in rank[0] for row in micro_batch)
    assert len(set(rows)) == 21
    if tail == "carry":
        opening = {first[1][0][0], second[1][0][0], first[1][0][1]}
        assert len(opening & set(rows)) == 0


def test_ranks_given_by_hand_are_compared_on_request():
    def both(compare):
        rank = distributed.get_rank()
        return list(FixedGlobalBatchSampler(40, 8, rank, 2, seed=rank, min_per_device=1, compare_ranks=compare))

    assert len(simulate(2, both, None)) == 2
    with pytest.raises(ValueError, match="the samplers of the ranks differ"):
        simulate(2, both, True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "compare_ranks=True with world_size=2, but no process group exists"),
        (1, "compare_ranks=1: it must be True or False"),
    ],
)
def test_wrong_settings(value, message):
    with pytest.raises(ValueError, match=message):
        compares_ranks(value, left_out=False, world_size=2)


def test_one_process_compares_nothing():
    assert not FixedGlobalBatchSampler(Sequential(40), 8, 0, 1, min_per_device=1)._compares
