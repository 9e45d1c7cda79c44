"""Randomness of a row depends on seed, epoch and index alone."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from samplers import FixedGlobalBatchSampler, Repeated, SeededRows, Sequential
from samplers.randomness import seeded


class Noisy(Dataset):
    """Each row draws from the three global generators."""

    classes = ("one", "two")

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def rows_of(world_size, epochs=2, workers=0, copies=1, **settings):
    """Rows by (epoch, index), over all ranks of a world."""
    found = {}
    for rank in range(world_size):
        data = SeededRows(Noisy(), seed=1)
        source = Repeated(24, copies, numbered=True) if copies > 1 else data
        sampler = FixedGlobalBatchSampler(source, 8, rank, world_size, min_per_device=1, dataset=data)
        loader = DataLoader(
            data,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=list,
            persistent_workers=workers > 0,
            **settings,
        )
        for epoch in range(epochs):
            for micro_batch in loader:
                for row in micro_batch:
                    found.setdefault((epoch, row[0]), []).append(row[1:])
    return found


@pytest.mark.usefixtures("collected")
def test_rows_depend_on_neither_ranks_nor_workers():
    expected = rows_of(1)
    assert len(expected) == 48
    assert rows_of(3) == expected
    assert rows_of(1, workers=2) == expected
    assert rows_of(1, workers=1, multiprocessing_context="spawn") == expected


def test_every_row_and_epoch_has_its_own():
    values = [value for rows in rows_of(1).values() for row in rows for value in row]
    assert len(set(values)) == len(values)


def test_numbered_copies_have_their_own():
    for copies in rows_of(1, epochs=1, copies=3).values():
        assert len(set(copies)) == 3


def test_the_random_states_of_the_caller_are_untouched():
    data = SeededRows(Noisy())
    data.set_epoch(0)
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    data[3]
    assert states == [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002


def test_states_are_restored_after_an_error():
    state = random.getstate()
    with pytest.raises(KeyError), seeded("test", 1):
        raise KeyError
    assert random.getstate() == state


def test_a_forgotten_epoch_is_noticed():
    with pytest.raises(ValueError, match=r"epoch of SeededRows was never set, .*: give this dataset to the sampler"):
        SeededRows(Noisy())[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SeededRows(Noisy(), seed="x"), "seed='x' is of type str"),
        (lambda: SeededRows(5), "dataset=5 must have __len__ and __getitem__: give a map-style dataset"),
        (
            lambda: SeededRows(Noisy()).set_epoch(-1),
            "epoch=-1 is too small: it must be at least 0; count epochs from 0",
        ),
    ],
)
def test_wrong_settings(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_dataset_shows_through():
    data = SeededRows(Noisy())
    assert data.classes == ("one", "two")
    assert len(pickle.loads(pickle.dumps(data))) == 24
    with pytest.raises(AttributeError):
        data.targets  # noqa: B018 - reading it is the test


def test_an_order_tells_the_dataset_too():
    data = SeededRows(Noisy())
    sampler = FixedGlobalBatchSampler(Sequential(24), 8, 0, 1, min_per_device=1, dataset=data)
    sampler.set_epoch(2)
    next(iter(sampler))
    assert int(data._epoch) == 2


class Whole(Noisy):
    """Reads a batch, is pickled and copied in ways of its own."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def __getstate__(self):
        return {}

    def __deepcopy__(self, memo):
        return Whole()


@pytest.mark.parametrize("data", [Subset(Noisy(), range(24)), Whole()])
def test_a_dataset_that_reads_batches_is_seeded_all_the_same(data):
    rows = SeededRows(data, seed=1)
    plain = SeededRows(Noisy(), seed=1)
    for dataset in (rows, plain):
        dataset.set_epoch(3)
    (found,) = DataLoader(rows, batch_size=24, collate_fn=list)
    assert found == [plain[index] for index in range(24)]
    assert rows.__getitems__([25]) == [plain[25]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_a_copy_is_seeded_and_has_an_epoch_that_workers_see(copied):
    rows = SeededRows(Whole(), seed=1)
    rows.set_epoch(2)
    other = copied(rows)
    assert type(other) is SeededRows
    assert type(other.dataset) is Whole
    assert other[5] == rows[5]
    assert other._epoch.is_shared()


def test_the_dataset_inside_is_told_the_epoch():
    inner = SeededRows(Noisy(), seed=2)
    SeededRows(inner).set_epoch(4)
    assert int(inner._epoch) == 4


def test_an_index_may_be_a_tensor():
    rows = SeededRows(Noisy(), seed=1)
    rows.set_epoch(0)
    assert rows[torch.tensor(3)] == rows[3]
