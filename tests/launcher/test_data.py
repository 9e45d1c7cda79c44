"""Loaders, and the rows that ship: in memory, and the digits."""

import pytest
import torch

from launcher.data.digits import digits
from launcher.data.loaders import loader
from launcher.data.memory import InMemory


def test_a_batch_in_memory_is_fetched_at_once():
    rows = InMemory(torch.arange(10), torch.arange(10) * 2)
    assert len(rows) == 10
    assert rows[3] == (torch.tensor(3), torch.tensor(6))
    inputs, target = rows.__getitems__([4, 0, 4])
    assert (inputs.tolist(), target.tolist()) == ([4, 0, 4], [8, 0, 8])


@pytest.mark.parametrize(("tensors", "found"), [((3, 4), r"\[3, 4\]"), ((), r"\[\]")])
def test_tensors_of_different_length_are_refused(tensors, found):
    with pytest.raises(ValueError, match=f"tensors have {found} rows: give one or more of the same length"):
        InMemory(*(torch.zeros(n) for n in tensors))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_the_chosen_rows_and_leaves_the_callers_random_state(workers):
    before = torch.get_rng_state()
    batches = loader(InMemory(torch.arange(6)), [[5, 1], [2]], workers, torch.device("cpu"), seed=0)
    assert [batch[0].tolist() for batch in batches] == [[5, 1], [2]]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_digits_are_split_once_and_for_all():
    train, test = digits(), digits(train=False)
    assert (len(train), len(test)) == (1437, 360)
    images, classes = train.tensors
    assert (images.shape, images.dtype, classes.dtype) == ((1437, 1, 8, 8), torch.float32, torch.int64)
    assert (float(images.min()), float(images.max())) == (0, 1)
    assert len(torch.unique(torch.cat([train.tensors[0], test.tensors[0]]).flatten(1), dim=0)) == 1797
    assert test.tensors[1][:5].tolist() == digits(train=False).tensors[1][:5].tolist()
