import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samplers import Sequential, Shuffled
from samplers.contract import check_order
from samplers.orders import Order


def whole(order, epoch=0):
    return order.indices(epoch, np.arange(len(order))).tolist()


@pytest.mark.parametrize("order", [Sequential(7), Shuffled(7), Shuffled(1), Shuffled(70_000, seed=-3)])
def test_orders_keep_their_contract(order):
    assert isinstance(order, Order)
    check_order(order)


def test_sequential_is_the_same_every_epoch():
    assert whole(Sequential(4)) == whole(Sequential(4), epoch=9) == [0, 1, 2, 3]


@pytest.mark.parametrize("n", [100, 70_000])
def test_seed_and_epoch_do_not_collide(n):
    assert whole(Shuffled(n, seed=0), epoch=1) != whole(Shuffled(n, seed=1), epoch=0)
    assert whole(Shuffled(n, seed=1)) != whole(Shuffled(n, seed=2))
    assert whole(Shuffled(n, seed=1)) != whole(Shuffled(n, seed=1), epoch=1)


@pytest.mark.parametrize("seed", [-1, 0, 2**64, -(2**200), np.int64(5)])
def test_any_whole_number_is_a_seed(seed):
    assert sorted(whole(Shuffled(50, seed))) == list(range(50))


def test_different_seeds_beyond_64_bits_differ():
    assert whole(Shuffled(50, 2**64)) != whole(Shuffled(50, 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "n=0 is too small: it must be at least 1; give a dataset with at least one row"),
        ((-1,), "n=-1 is too small"),
        ((1.5,), "n=1.5 is of type float"),
        ((5, 0.5), "seed=0.5 is of type float: it must be a whole number; give any whole number"),
        ((5, True), "seed=True is a bool"),
        ((5, None), "seed=None is of type NoneType"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        Shuffled(*arguments)


def test_threads_may_ask_for_different_epochs_at_once():
    order = Shuffled(30_000, seed=5)
    wanted = [whole(Shuffled(30_000, seed=5), epoch) for epoch in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda epoch: whole(order, epoch % 4), range(40)))
    assert all(rows == wanted[place % 4] for place, rows in enumerate(found))


def test_a_kept_epoch_is_not_pickled():
    order = Shuffled(60_000)
    order.indices(0, np.arange(3))
    assert len(pickle.dumps(order)) < 500


def test_identity_tells_orders_apart():
    assert Shuffled(5, 1).identity() != Shuffled(5, 2).identity() != Sequential(5).identity()
