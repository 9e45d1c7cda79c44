"""Full enumeration of small numbers: n <= 40, W <= 8, G <= 24, every tail, every stop and every new world size.

In every world a pass has the same global batches, and a pass from any stop on has the rest of them: so a run that stops
in one world and goes on in another has them too.
"""

from math import ceil

import pytest

from samplers import BatchPlan, Shuffled
from samplers.passes import TAILS, Pass, check_tail

ROWS, WORLDS, SIZES = range(1, 41), range(1, 9), range(1, 25)


def plans(size, turn):
    """A plan for each world size without idle ranks; limits of micro-batches take turns."""
    maximum = (None, 1, 3)[turn % 3]
    for ranks in WORLDS:
        # A limit that would leave a rank with fewer micro-batches than another is refused.
        if ranks <= size and size // ranks >= ceil(ceil(size / ranks) / (maximum or size)):
            yield BatchPlan(size, ranks, 1, maximum)


def passes(size, tail, epoch):
    """Every pass of an epoch of every number of rows."""
    for n in ROWS:
        for plan in plans(size, n):
            if accepted(plan, n, tail):
                carried = epoch * n % size if tail == "carry" else 0
                yield Pass(plan, n, tail, epoch, carried=carried)


def accepted(plan, n, tail):
    try:
        return check_tail(plan, n, tail) == tail
    except ValueError:
        return False


def streams(current, order):
    """Micro-batches of each rank."""
    return [list(current.draw(rank, order)) for rank in range(current.plan.active)]


def said(current, drawn):
    """What is said of each micro-batch of each rank."""
    assert {len(stream) for stream in drawn} == {current.micro_batches(0)}
    return [[current.share(rank, place) for place in range(len(stream))] for rank, stream in enumerate(drawn)]


def steps(current, drawn, shares):
    """Rows of each step in the order of their places, after checking what is said of every micro-batch."""
    found, place = [], 0
    while place < current.micro_batches(0):
        stop = place + 1
        while not shares[0][stop - 1].last_in_step:
            stop += 1
        found.append(one_step(drawn, shares, range(place, stop)))
        place = stop
    assert len(found) == current.steps
    return found


def one_step(drawn, shares, places):
    hands = [[row for place in places for row in stream[place]] for stream in drawn]
    mine = [(shares[rank][place], stream[place]) for rank, stream in enumerate(drawn) for place in places]
    assert all(share.rows == len(rows) >= 1 for share, rows in mine)
    counting = sum(share.real_rows for share, _ in mine)
    assert {share.global_rows for share, _ in mine} == {counting}
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1
    return tuple(hands[turn % len(hands)][turn // len(hands)] for turn in range(sum(sizes))), counting


def check_report(current, drawn, shares):
    """What the report counts is what is dealt, in an epoch without rows that were carried into it."""
    report = current.plan.report(current.n, current.tail)
    sizes = [len(rows) for stream in drawn for rows in stream]
    every = [share for of_rank in shares for share in of_rank]
    real = sum(share.real_rows for share in every)
    assert report.steps_per_epoch == current.steps
    assert report.rows_padded == sum(sizes) - real
    assert report.rows_dropped + report.rows_carried == current.n - real
    assert (report.rows_carried == 0) or current.tail == "carry"
    assert (report.smallest_micro_batch, report.largest_micro_batch) == (min(sizes), max(sizes))
    assert report.last_step_rows == sum(share.rows for share in every if share.step == current.steps - 1)


def check_rest(whole, drawn, order):
    """From any stop on, there is what was left."""
    count = whole.plan.micro_count(0)
    for stop in range(1, whole.steps):
        rest = Pass(
            whole.plan, whole.n, whole.tail, whole.epoch, start=stop * whole.plan.global_size, carried=whole.carried
        )
        assert streams(rest, order) == [stream[stop * count :] for stream in drawn]
        assert rest.share(0, 0) == whole.share(0, stop * count)
        assert rest.share(rest.plan.active - 1, rest.micro_batches(0) - 1) == whole.share(
            rest.plan.active - 1, whole.micro_batches(0) - 1
        )


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", SIZES)
def test_every_world_deals_the_same_global_batches_and_every_stop_leaves_the_rest(tail, size):
    expected = {}
    orders = {n: Shuffled(n, seed=size) for n in ROWS}
    for epoch in (0, 1):
        for current in passes(size, tail, epoch):
            drawn = streams(current, orders[current.n])
            shares = said(current, drawn)
            found = steps(current, drawn, shares)
            # Whether a spread tail makes a step depends on the number of ranks; the rest does not.
            key = (current.n, epoch, len(found) if tail == "spread" else 0)
            assert found == expected.setdefault(key, found)
            assert all(len(set(rows[:real])) == real for rows, real in found) or tail == "carry"
            if epoch:
                check_rest(current, drawn, orders[current.n])
            else:
                check_report(current, drawn, shares)
