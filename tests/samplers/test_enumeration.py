"""Full enumeration of small numbers: every tail, stop point and new world size."""

from itertools import product
from math import ceil

import pytest

from samplers import BatchPlan, Shuffled
from samplers.passes import TAILS, Pass, check_tail

WORLDS = range(1, 9)


def plans(size):
    """Plans of every world size without idle ranks, with and without accumulation."""
    for ranks, maximum in product(WORLDS, (None, 1, 3)):
        # A limit that would leave a rank with fewer micro-batches than another is refused.
        if ranks <= size and size // ranks >= ceil(ceil(size / ranks) / (maximum or size)):
            yield BatchPlan(size, ranks, 1, maximum)


def dealt(current, order):
    """Rows of each step in the order of their places, and how many of them count."""
    ranks = range(current.plan.active)
    streams = [list(current.draw(rank, order)) for rank in ranks]
    assert {len(stream) for stream in streams} == {current.micro_batches}
    steps, place = [], 0
    while place < current.micro_batches:
        stop = place
        while not current.share(0, stop).last_in_step:
            stop += 1
        steps.append(one_step(current, streams, range(place, stop + 1)))
        place = stop + 1
    assert len(steps) == current.steps
    return steps


def one_step(current, streams, places):
    hands, counting, totals = [], 0, set()
    for rank, stream in enumerate(streams):
        hands.append([row for place in places for row in stream[place]])
        for place in places:
            share = current.share(rank, place)
            assert share.rows == len(stream[place]) >= 1
            counting += share.real_rows
            totals.add(share.global_rows)
    assert totals == {counting}
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1
    rows = [hands[turn % len(hands)][turn // len(hands)] for turn in range(sum(sizes))]
    return tuple(rows), counting


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", range(1, 25))
def test_every_world_deals_the_same_global_batches(tail, size):
    for n in [*range(1, 41, 3 if size % 2 else 2), 40]:
        order = Shuffled(n, seed=size)
        expected = {}
        for plan, epoch in product(plans(size), (0, 1)):
            if accepted(plan, n, tail):
                steps = dealt(Pass(plan, n, tail, epoch, carried=carried(n, size, tail, epoch)), order)
                known = expected.setdefault((epoch, len(steps) if tail == "spread" else 0), steps)
                assert steps == known


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 12, 16, 23, 24])
def test_every_stop_continues_with_the_steps_that_were_left(tail, size):
    for n in range(1, 41, 3):
        order = Shuffled(n, seed=size)
        for plan in plans(size):
            if accepted(plan, n, tail):
                whole = Pass(plan, n, tail, 1, carried=carried(n, size, tail, 1))
                steps = dealt(whole, order)
                for stop in range(whole.steps):
                    rest = Pass(plan, n, tail, 1, start=stop * size, carried=whole.carried)
                    assert dealt(rest, order) == steps[stop:]
                    assert rest.share(0, 0).step == stop


def accepted(plan, n, tail):
    try:
        return check_tail(plan, n, tail) == tail
    except ValueError:
        return False


def carried(n, size, tail, epoch):
    return epoch * n % size if tail == "carry" else 0
