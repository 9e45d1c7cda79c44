"""The public checks find what public samplers do wrong, and pass what is right."""

import dataclasses

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from samplers import ContractError, ExactlyOnceSampler, FixedGlobalBatchSampler, Sequential, Share, Shuffled
from samplers.contract import (
    check_contract,
    check_exactly_once,
    check_no_starved_rank,
    check_order,
    check_resume,
    check_same_batches,
    global_batches,
)


def distributed(n, size, *, drop_last=False):
    """torch's own, with rows per rank chosen so that the global batch stays the same."""

    def make(rank, ranks):
        sampler = DistributedSampler(range(n), ranks, rank, seed=1)
        return BatchSampler(sampler, size // ranks, drop_last=drop_last)

    return make


def fixed(n=40, size=8, kind=FixedGlobalBatchSampler, **settings):
    return lambda rank, ranks: kind(n, size, rank, ranks, **{"min_per_device": 1, **settings})


class WrongLength(FixedGlobalBatchSampler):
    def __len__(self):
        return super().__len__() + (self.rank == 1)


class Impatient(FixedGlobalBatchSampler):
    """Its state is one step ahead, as that of a sampler which counts what was drawn."""

    def state_dict(self, rows_done=None):
        return super().state_dict(min(rows_done + 8, 40))


class Boastful(FixedGlobalBatchSampler):
    def share(self, micro_batch):
        share = super().share(micro_batch)
        return Share(share.step, share.rows, share.real_rows, share.global_rows + 1, share.last_in_step)


class ByWorld(FixedGlobalBatchSampler):
    """Another seed for every number of ranks."""

    def __init__(self, n, size, rank, ranks, **settings):
        super().__init__(n, size, rank, ranks, seed=ranks, **settings)


class OfRank(FixedGlobalBatchSampler):
    """A state that differs from rank to rank."""

    def state_dict(self, rows_done=None):
        return {**super().state_dict(rows_done), "rank": self.rank}


class Forgetful(FixedGlobalBatchSampler):
    """Counts steps from where the pass started."""

    def share(self, micro_batch):
        share = super().share(micro_batch)
        return dataclasses.replace(share, step=share.step - self._pass.start // self.plan.global_size)


class Tidy(FixedGlobalBatchSampler):
    """Sorts the rows of a rank, which puts them at other positions of the global batch in every world."""

    def __iter__(self):
        return map(sorted, super().__iter__())


class Misnamed(FixedGlobalBatchSampler):
    """Counts the shards of each rank from 0."""

    def share(self, micro_batch):
        share = super().share(micro_batch)
        return dataclasses.replace(share, shards=range(len(share.shards)))


class ShardByShard(FixedGlobalBatchSampler):
    """Puts one shard of a micro-batch behind the other, which is not what it says of its rows."""

    def __iter__(self):
        for place, rows in enumerate(super().__iter__()):
            shards = len(super().share(place).shards)
            yield [row for shard in range(shards) for row in rows[shard::shards]]


class OneStep(FixedGlobalBatchSampler):
    """Accumulates all micro-batches of rank 1 into one step."""

    def share(self, micro_batch):
        share = super().share(micro_batch)
        return dataclasses.replace(share, last_in_step=share.last_in_step and self.rank != 1)


@pytest.mark.parametrize(
    ("check", "make", "message"),
    [
        (check_same_batches, distributed(100, 12), "epoch 0 has other global batches on 3 ranks: step 8"),
        (check_no_starved_rank, distributed(97, 32), None),
        (check_same_batches, fixed(kind=ByWorld), "epoch 0 has other global batches on 2 ranks: step 0 has rows"),
        (
            check_same_batches,
            fixed(kind=WrongLength),
            r"len says \[5, 6\] micro-batches on the ranks, .* yields \[5, 5\]",
        ),
        (check_same_batches, fixed(kind=Boastful), r"step 0 has 8 rows that count, share says \[9\]"),
        (check_resume, fixed(kind=Impatient), "resumed on 1 rank from .*, other steps follow"),
        (check_resume, fixed(kind=Forgetful), r"share numbers the steps \[0, 1, 2, 3\], expected \[1, 2, 3, 4\]"),
        (check_contract, fixed(kind=Forgetful), "share numbers the steps"),
        (check_contract, fixed(kind=Tidy), "epoch 0 has other global batches on 2 ranks: step 0"),
        (check_resume, fixed(kind=OfRank), "ranks write different states after 0 rows"),
        (
            check_same_batches,
            fixed(kind=Misnamed, shard_rows=2),
            r"step 0: ranks hold shards \[0, 1, 0, 1\], not each once and in order",
        ),
        (check_contract, fixed(kind=ShardByShard, shard_rows=2), "epoch 0 has other global batches on 2 ranks: step 0"),
        (check_contract, fixed(kind=OneStep, shard_rows=2), r"ranks take different numbers of steps: \[5, 1\]"),
        (check_contract, fixed(kind=OneStep), r"ranks take different numbers of steps: \[5, 1\]"),
    ],
)
def test_broken_samplers_are_found(check, make, message):
    if message is None:
        check(make, (1, 2))
        return
    with pytest.raises(ContractError, match=message):
        check(make, (1, 2, 3))


def test_starved_and_uneven_ranks_are_found():
    lists = {0: [[0, 1], [2, 3]], 1: [[4], [5, 6]]}
    with pytest.raises(ContractError, match="step 0, 2 ranks: a micro-batch has 1 row, not 2"):
        check_no_starved_rank(lambda rank, _: lists[rank], (2,), min_per_device=2)
    lists[1] = [[4, 5, 6, 7], [8, 9]]
    with pytest.raises(ContractError, match=r"shares differ by more than one row: \[2, 4\]"):
        check_no_starved_rank(lambda rank, _: lists[rank], (2,))
    lists[1] = [[4, 5]]
    with pytest.raises(ContractError, match=r"ranks yield different numbers of micro-batches: \[2, 1\]"):
        global_batches(list(lists.values()))


class OneMicroBatch(list):
    """A rank that says of its one micro-batch which shards it holds."""

    def __init__(self, rows, *shards):
        super().__init__([rows])
        self.shards = shards

    def share(self, micro_batch):
        return Share(micro_batch, len(self[0]), len(self[0]), self.total, True, self.shards)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([OneMicroBatch([0, 1, 4], 0, 1), OneMicroBatch([2, 5], 2)], "step 0, 2 ranks: a shard has 1 row, not 2"),
        (
            [OneMicroBatch([0, 4, 6, 8], 0), OneMicroBatch([2, 5], 1)],
            r"step 0, 2 ranks: shards differ by more than one row: \[4, 2\]",
        ),
        (
            [OneMicroBatch([0, 1, 2, 4, 5, 6], 0, 1, 2), OneMicroBatch([3, 7], 3)],
            r"step 0, 2 ranks: shares differ by more than one shard: \[3, 1\]",
        ),
    ],
)
def test_uneven_shards_are_found(ranks, message):
    OneMicroBatch.total = sum(len(rank[0]) for rank in ranks)
    with pytest.raises(ContractError, match=message):
        check_no_starved_rank(lambda rank, _: ranks[rank], (2,), min_per_device=2)


def test_shards_are_told_rank_by_rank():
    samplers = [fixed(11, 11, shard_rows=3, max_per_device=4)(rank, 2) for rank in range(2)]
    (batch,) = global_batches(samplers)
    assert batch.shards == ((4, 4), (3,))
    assert [len(share) for share in batch.shares] == [2, 1]


def test_torchs_whole_batches_pass_where_the_world_divides_them():
    check_contract(distributed(96, 12), (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rank, _: [[0, 1]] if rank == 0 else [[1]], r"not seen exactly once: \[1, 2\]"),
        (lambda _rank, _ranks: [[0], []], "an empty batch on 2 ranks"),
    ],
)
def test_an_evaluation_that_repeats_or_misses_is_found(make, message):
    with pytest.raises(ContractError, match=message):
        check_exactly_once(make, 3, (2,))


def test_an_evaluation_that_is_right_passes():
    check_exactly_once(lambda rank, ranks: ExactlyOnceSampler(10, 3, rank, ranks), 10)


class Stateful(Shuffled):
    """Gives something else whenever it is asked."""

    asked = 0

    def indices(self, epoch, positions):
        self.asked += 1
        return super().indices(epoch + self.asked, positions)


class Short(Sequential):
    def indices(self, epoch, positions):
        return super().indices(epoch, positions).astype(np.int32)


@pytest.mark.parametrize(
    ("order", "message"),
    [(Stateful(40), "epoch 0: asked one by one it gives other rows"), (Short(40), "indices are int32, not int64")],
)
def test_an_impure_order_is_found(order, message):
    with pytest.raises(ContractError, match=message):
        check_order(order)
