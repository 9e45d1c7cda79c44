"""Full enumeration of small numbers with shards: n <= 40, G <= 24, W <= 8, every tail, every stop and every new world.

Every pass has the global batches that are written down here by slicing a list, in every world, and a pass from any stop
on has the rest of them: so a run that stops in one world and goes on in another has them too.
"""

import numpy as np
import pytest

from samplers import BatchPlan, Shuffled
from samplers.contract import global_batches
from samplers.passes import TAILS, Pass, check_tail

ROWS, WORLDS, SIZES, SHARD_ROWS = range(1, 41), range(1, 9), range(1, 25), (1, 2, 3, 5)


class OneRank:
    """What the contract needs of a sampler: one pass of one rank."""

    def __init__(self, current, rank, order):
        self.current, self.rank = current, rank
        self.drawn = list(current.draw(rank, order))
        self.shares = [current.share(rank, place) for place in range(len(self))]
        self.share = self.shares.__getitem__

    def __len__(self):
        return self.current.micro_batches(self.rank)

    def __iter__(self):
        return iter(self.drawn)


def plans(size, shard_rows, turn):
    """A plan for each world size without idle ranks; limits of micro-batches and of shards take turns."""
    minimum = min(1 + turn // 3 % 2, shard_rows)
    largest = BatchPlan(size, 1, minimum, None, shard_rows).largest_shard
    maximum = (None, largest, 2 * largest)[turn % 3]
    made = [BatchPlan(size, ranks, minimum, maximum, shard_rows) for ranks in WORLDS]
    return [plan for plan in made if plan.idle == 0]


def passes(size, tail, turn):
    """Every pass of every number of rows, an epoch that others precede."""
    for n in ROWS:
        shard_rows = SHARD_ROWS[(n // 6 + turn) % len(SHARD_ROWS)]
        for plan in plans(size, shard_rows, n) if shard_rows <= size else ():
            if accepted(plan, n, tail):
                yield Pass(plan, n, tail, 1, carried=n % size if tail == "carry" else 0, pad_counts=turn % 2 == 0)


def accepted(plan, n, tail):
    try:
        return check_tail(plan, n, tail) == tail
    except ValueError:
        return False


def written_out(current, order):
    """Rows that count in each step, by slicing."""
    before, rows = order[0][current.n - current.carried :], order[1]
    size = current.plan.global_size
    steps = [(before + rows)[at : at + size] for at in range(0, len(before + rows), size)]
    if len(steps[-1]) == size:
        return steps
    if current.tail == "pad":
        padded = steps[-1] + (size * rows)[: size - len(steps[-1])] if current.pad_counts else steps[-1]
        return [*steps[:-1], padded]
    shards = size // current.plan.shard_rows
    kept = current.tail == "spread" and len(steps[-1]) // shards >= current.plan.min_per_device
    return steps if kept else steps[:-1]


def check_sizes(current, batch):
    """Shards as even as they can be, in neighbouring ranges on the ranks, and whole in the micro-batches."""
    plan = current.plan
    shards = plan.global_size // plan.shard_rows
    sizes = [rows for held in batch.shards for rows in held]
    assert sizes == [batch.rows // shards + (shard < batch.rows % shards) for shard in range(shards)]
    assert min(sizes) >= plan.min_per_device
    counts = [len(held) for held in batch.shards]
    assert counts == [shards // plan.world_size + (rank < shards % plan.world_size) for rank in range(plan.world_size)]
    micro = [len(rows) for share in batch.shares for rows in share]
    assert max(micro) <= (plan.max_per_device or plan.global_size)
    if plan.max_per_device is None:
        assert len(micro) == plan.world_size
    elif plan.max_per_device < 2 * plan.largest_shard:
        assert sorted(micro) == sorted(sizes)
    else:
        assert len({len(share) for share in batch.shares}) == 1


def check_rest(current, ranks, order):
    """From any stop on, every rank has what was left."""
    size = current.plan.global_size
    for stop in range(1, current.steps):
        rest = Pass(current.plan, current.n, current.tail, 1, stop * size, current.carried, current.pad_counts)
        for rank, whole in enumerate(ranks):
            after, done = OneRank(rest, rank, order), stop * current.plan.micro_count(rank)
            assert (after.drawn, after.shares) == (whole.drawn[done:], whole.shares[done:])
            assert current.rows_drawn(rank, done) == stop * size


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", SIZES)
def test_every_world_deals_what_slicing_gives_and_every_stop_leaves_the_rest(tail, size):
    orders = {n: Shuffled(n, seed=size) for n in ROWS}
    rows = {n: [order.indices(epoch, np.arange(n)).tolist() for epoch in (0, 1)] for n, order in orders.items()}
    for turn in (0, 1):
        for current in passes(size, tail, turn):
            order = orders[current.n]
            ranks = [OneRank(current, rank, order) for rank in range(current.plan.world_size)]
            batches = global_batches(ranks)
            assert [list(batch.dealt) for batch in batches] == written_out(current, rows[current.n])
            assert [batch.step for batch in batches] == list(range(current.steps))
            for batch in batches:
                check_sizes(current, batch)
            check_rest(current, ranks, order)
