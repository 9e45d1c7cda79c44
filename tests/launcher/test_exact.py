"""The sum over shards: one tree, whoever adds which of its nodes."""

import random
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
import torch
import torch.distributed as dist

from launcher.testing import simulate
from launcher.training import exact
from launcher.training.exact import CarryStack, TreeSum, are_siblings, cover, finish

TREES = {
    1: "0",
    2: "(0+1)",
    3: "((0+1)+2)",
    4: "((0+1)+(2+3))",
    5: "(((0+1)+(2+3))+4)",
    6: "(((0+1)+(2+3))+(4+5))",
    7: "(((0+1)+(2+3))+((4+5)+6))",
    8: "(((0+1)+(2+3))+((4+5)+(6+7)))",
    9: "((((0+1)+(2+3))+((4+5)+(6+7)))+8)",
    11: "((((0+1)+(2+3))+((4+5)+(6+7)))+((8+9)+10))",
    13: "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+12))",
}
COVERS = [
    (range(1), [(0, 0)]),
    (range(4), [(2, 0)]),
    (range(7), [(2, 0), (1, 2), (0, 6)]),
    (range(1, 2), [(0, 1)]),
    (range(1, 3), [(0, 1), (0, 2)]),
    (range(3, 8), [(0, 3), (2, 1)]),
    (range(1, 7), [(0, 1), (1, 1), (1, 2), (0, 6)]),
    (range(1, 15), [(0, 1), (1, 1), (2, 1), (2, 2), (1, 6), (0, 14)]),
    (range(8, 13), [(2, 2), (0, 12)]),
]
MOST = 24
EVERY_RANGE = [range(start, stop) for stop in range(1, MOST + 1) for start in range(stop)]


def join(left, right):
    return f"({left}+{right})"


def halved(values, add):
    """The same tree, written otherwise: cut after the largest power of two that leaves something on the right."""
    if len(values) == 1:
        return values[0]
    middle = 1 << ((len(values) - 1).bit_length() - 1)
    return add(halved(values[:middle], add), halved(values[middle:], add))


def named(shards):
    return halved([str(shard) for shard in shards], join)


def held(node, shards):
    level, index = node
    return range(index << level, min((index + 1) << level, shards))


def stacked(shards):
    """A carry stack that took the names of these shards, and the most values it ever held."""
    stack, most = CarryStack(join), 0
    for shard in shards:
        stack.push(shard, str(shard))
        most = max(most, len(stack.values))
    return stack, most


def added(ranges):
    """The expression that ranks with these ranges of shards compute together."""
    parts = {}
    for shards in ranges:
        stack, _ = stacked(shards)
        parts.update(zip(stack.nodes, stack.values, strict=True))
    return finish(parts, ranges[-1].stop, join)


def even(shards, ranks):
    """As the launcher deals shards: neighbouring ones, larger ranges first."""
    each, more = divmod(shards, ranks)
    starts = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return [range(*ends) for ends in pairwise(starts)]


def cut(shards, places):
    return [range(*ends) for ends in pairwise([0, *places, shards])]


@pytest.mark.parametrize(("shards", "tree"), TREES.items())
def test_the_tree_written_out(shards, tree):
    assert named(range(shards)) == tree
    assert finish({(0, shard): str(shard) for shard in range(shards)}, shards, join) == tree
    assert added([range(shards)]) == tree


@pytest.mark.parametrize(("shards", "nodes"), COVERS)
def test_a_range_is_covered_by_the_largest_subtrees_inside_it(shards, nodes):
    assert cover(shards) == nodes


@pytest.mark.parametrize(
    ("left", "right", "siblings"),
    [((0, 0), (0, 1), True), ((0, 1), (0, 2), False), ((1, 2), (1, 3), True), ((1, 0), (0, 1), False)],
)
def test_siblings_have_one_parent(left, right, siblings):
    assert are_siblings(left, right) is siblings


def test_every_range_holds_each_shard_once_in_its_order_as_subtrees_of_the_one_tree():
    for shards in EVERY_RANGE:
        stack, _ = stacked(shards)
        assert stack.nodes == cover(shards)
        assert [shard for node in stack.nodes for shard in held(node, shards.stop)] == list(shards)
        assert stack.values == [named(held(node, shards.stop)) for node in stack.nodes]
        values = stack.values
        assert stack.clear() == values
        assert (stack.nodes, stack.values) == ([], [])


def test_the_stack_stays_small():
    for shards in EVERY_RANGE:
        stack, most = stacked(shards)
        assert max(Counter(level for level, _ in stack.nodes).values()) <= 2
        assert most <= 2 * len(shards).bit_length()
        if shards.start % (1 << (len(shards) - 1).bit_length()) == 0:
            assert most <= len(shards).bit_length()  # log2 of its length, rounded down, + 1


@pytest.mark.parametrize("shards", range(1, MOST + 1))
def test_every_number_of_ranks_computes_the_same_expression(shards):
    assert {added(even(shards, ranks)) for ranks in range(1, shards + 1)} == {named(range(shards))}


@pytest.mark.parametrize("shards", range(1, 13))
def test_every_partition_into_ranges_computes_the_same_expression(shards):
    every = [cut(shards, places) for count in range(shards) for places in combinations(range(1, shards), count)]
    assert len(every) == 2 ** (shards - 1)
    assert {added(ranges) for ranges in every} == {named(range(shards))}


@pytest.mark.parametrize("shards", range(13, MOST + 1))
def test_three_ranks_cut_anywhere_compute_the_same_expression(shards):
    every = [cut(shards, places) for places in combinations(range(1, shards), 2)]
    assert {added(ranges) for ranges in every} == {named(range(shards))}


# Over processes: vectors of every number of shards, shorter than the ranks and not divisible by them.
SHARDS = range(1, 14)
SIZES = (1, 2, 7, 64, 1001)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CUTS = {2: [1], 3: [2, 3], 4: [1, 2, 11], 5: [3, 4, 5, 12]}


def vector(shard, size, dtype):
    stream = torch.Generator().manual_seed(1000 * shard + size)
    return (torch.randn(size, generator=stream, dtype=torch.float64) * 10 ** (shard % 5)).to(dtype)


def partitions(ranks):
    """The even splits, and one of 13 shards that is as uneven as can be."""
    return [even(shards, ranks) for shards in SHARDS if shards >= ranks] + ([cut(13, CUTS[ranks])] if ranks > 1 else [])


def sums(ranks, whole):
    """On a rank: the total of every case; several are under way at a time, as the buckets of a step are."""
    exact.WHOLE, totals = whole, []
    for ranges in partitions(ranks):
        tree, pending = TreeSum(ranges, dist.get_rank()), []
        for dtype in DTYPES:
            for size in SIZES:
                stack = CarryStack(torch.Tensor.add_)
                for shard in ranges[tree.rank]:
                    stack.push(shard, vector(shard, size, dtype))
                pending.append(tree.start(stack.clear()))
        for each in pending:
            each.gather()
        totals.append([each.result() for each in pending])
    return totals


@pytest.mark.parametrize("whole", [0, 100, 1 << 18], ids=["slices", "both", "whole"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_ranks_get_the_bits_of_the_tree(ranks, whole):
    expected = [
        [
            halved([vector(shard, size, dtype) for shard in range(ranges[-1].stop)], torch.add)
            for dtype in DTYPES
            for size in SIZES
        ]
        for ranges in partitions(ranks)
    ]
    for totals in simulate(ranks, sums, ranks, whole):
        assert len(totals) == len(expected)
        for mine, right in zip(totals, expected, strict=True):
            assert [total.dtype for total in mine] == [total.dtype for total in right]
            assert all(torch.equal(*pair) for pair in zip(mine, right, strict=True))


def test_another_order_gives_other_bits():
    """What the tests above would see."""
    values = [vector(shard, 1001, torch.float32) for shard in range(7)]
    left_to_right = sum(values[1:], values[0])
    ring = sum([*values[4:], *values[1:4]], values[3])
    halves = halved([sum(values[1:3], values[0]), sum(values[4:], values[3])], torch.add)
    tree = halved(values, torch.add)
    assert not any(torch.equal(tree, other) for other in (left_to_right, ring, halves))


# An oracle that knows no order: exact fractions, and whole numbers.
def tree_sum(values, dtype):
    """The tree over single numbers of a floating-point format, by a carry stack and ``finish``."""
    stack = CarryStack(torch.Tensor.add_)
    for shard, value in enumerate(values):
        stack.push(shard, torch.tensor([value], dtype=dtype))
    total = finish(dict(zip(stack.nodes, stack.clear(), strict=True)), len(values), torch.Tensor.add_)
    return Fraction(total.double().item())


def draw(count, exponent, bits, seed):
    """Multiples of 2**-exponent of so many bits, exact in any format that holds the bits."""
    stream = random.Random(seed)
    return [Fraction(stream.randrange(-(1 << bits), 1 << bits), 1 << exponent) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53), (torch.bfloat16, 8)])
def test_sums_that_need_no_rounding_are_those_of_the_oracle_in_any_order(dtype, digits):
    for shards in range(1, 33):
        fractions = draw(shards, exponent=6, bits=digits - 1 - (shards - 1).bit_length(), seed=shards)
        for turn in range(3):
            assert tree_sum([float(f) for f in fractions], dtype) == sum(fractions)
            random.Random(turn).shuffle(fractions)


def test_sums_of_whole_numbers_are_those_of_int64():
    for shards in range(1, 33):
        stream = torch.Generator().manual_seed(shards)
        whole = torch.randint(-(2**47), 2**47, (shards,), generator=stream)
        assert tree_sum(whole.tolist(), torch.float64) == int(whole.sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_is_within_that_of_so_many_roundings(dtype):
    worst = Fraction(0)
    for shards in range(1, 65):
        values = [vector(shard, 1, dtype).item() for shard in range(shards)]
        exact, size = sum(map(Fraction, values)), sum(abs(Fraction(value)) for value in values)
        error, height = abs(tree_sum(values, dtype) - exact), (shards - 1).bit_length()
        assert error <= height * Fraction(torch.finfo(dtype).eps) * size
        worst = max(worst, error / size)
    assert worst > 0
