"""Sums over shards whose bits do not depend on who holds which shard.

Addition of floating-point numbers rounds, so (a + b) + c and a + (b + c) differ in their last bits. What a step adds up
(gradients, buffers, losses) must therefore be added in one fixed order, and that order must not know of ranks. It is
that of a binary tree over the shards 0 .. V - 1::

    S(0, i) = the value of shard i
    S(l, i) = S(l - 1, 2 i) + S(l - 1, 2 i + 1)        where shard (2 i + 1) 2^(l - 1) exists
    S(l, i) = S(l - 1, 2 i)                            where it does not
    total   = S(h, 0)  with the least h for which 2^h >= V

**Whoever computes them, the bits of all S(l, i) are the same.** By induction over l. For l = 0 that is the assumption:
the value of a shard is a function of what the step began with, of the rows of the shard and of its number. For l > 0
the operands have the same bits by induction, and the sum of two numbers, or of two vectors element by element, is a
function of its operands. The second case adds nothing. So it does not matter which rank computes S(l, i), nor when,
nor how a vector is cut for it, as long as it computes that node out of its two children, and no sum that is not in the
tree. World size, ring order, buckets and their order enter nowhere.

Three places compute nodes, and none of them any other sum:

- `CarryStack`: a rank takes a contiguous range of shards, one after the other. As soon as two siblings S(l, 2 i) and
  S(l, 2 i + 1) lie on top of the stack they become S(l + 1, i). What remains are the roots of the largest subtrees
  within the range, `cover(shards)`. From left to right their levels rise and then fall, and none comes twice on either
  side, since the left one of two could be joined with what follows it: so there are at most two for each level. Where
  the range starts at a multiple of a power of two not below its length, there is at most one for each level.
- `finish`: the rest of the tree from those roots, by the recursion above.
- `TreeSum`: the ranks cut their vectors into one slice for each rank and exchange them, each rank finishes the tree on
  its slice, and the finished slices are gathered. Short vectors go whole to every rank, and each finishes the whole
  tree. Exchanging and gathering move bits and add nothing.

**From step to step** the same induction runs on: equal bits before a step give equal sums, and these equal bits after
it, where all that follows is a function of them too. Who sees to the assumptions:

- The rows of a shard: `samplers` deals positions to shards, not to ranks; each row is read with random streams of its
  own, by one thread; what draws elsewhere is refused (`check`).
- A shard's own computation: buffers as before the step (`buffers`), random streams from seed, step and shard, one shard
  at a time, deterministic operations only (`compute`); parameters that change on the way are refused (`exact_step`).
- The gradients that the optimizer and clipping see: the same layout and alignment in memory for every number of ranks
  (`shard_gradients`), division by the rows last, streams that are the same on every rank.
- Evaluation: whole batches in a fixed order (`evaluate`).
- The machine: versions, instruction set and threads round differently; ranks compare them, and a run keeps them
  (`checkpoints.identity`). What a module keeps in plain attributes from one forward to the next is not seen by anybody:
  a layer whose output depends on such a count is not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

WHOLE = 1 << 18
"""Numbers, of all ranks together, up to which vectors travel whole, which takes one collective instead of two."""

Node = tuple[int, int]
"""Level and index in the tree: shards index * 2**level up to, not including, (index + 1) * 2**level."""

Value = TypeVar("Value")

# all_gather_into_tensor is called all_gather_single since torch 2.14, which warns of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class CarryStack(Generic[Value]):
    """The values of a contiguous range of shards, added up as far as the tree allows.

    Attributes:
        add: gives the sum of the left and the right value; it may reuse the left one.
        nodes: where in the tree the values stand, from left to right.
        values: one for each node.
    """

    add: Callable[[Value, Value], Value]
    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def push(self, shard: int, value: Value) -> None:
        """Take the value of the next shard."""
        self.nodes.append((0, shard))
        self.values.append(value)
        while len(self.nodes) > 1 and are_siblings(self.nodes[-2], self.nodes[-1]):
            right, (level, index) = self.values.pop(), self.nodes[-2]
            self.nodes[-2:] = [(level + 1, index // 2)]
            self.values[-1] = self.add(self.values[-1], right)

    def clear(self) -> list[Value]:
        """The values, from left to right; the stack is empty afterwards."""
        values, self.values, self.nodes = self.values, [], []
        return values


def are_siblings(left: Node, right: Node) -> bool:
    """Whether two nodes are the left and the right child of one node."""
    return left[0] == right[0] and left[1] % 2 == 0 and right[1] == left[1] + 1


def cover(shards: Iterable[int]) -> list[Node]:
    """The nodes that a carry stack holds after a contiguous range of shards.

    >>> cover(range(3, 8))
    [(0, 3), (2, 1)]
    """
    stack: CarryStack[None] = CarryStack(lambda _left, _right: None)
    for shard in shards:
        stack.push(shard, None)
    return stack.nodes


def finish(values: Mapping[Node, Value], shards: int, add: Callable[[Value, Value], Value]) -> Value:
    """The total over all ``shards``, from the values of nodes that cover each of them once.

    >>> finish({(0, 0): "a", (1, 1): "b", (0, 4): "c", (0, 1): "d"}, 5, lambda left, right: f"({left} + {right})")
    '(((a + d) + b) + c)'
    """

    def total(level: int, index: int) -> Value:
        if (level, index) in values:
            return values[level, index]
        left, right = total(level - 1, 2 * index), 2 * index + 1
        return add(left, total(level - 1, right)) if right << (level - 1) < shards else left

    return total((shards - 1).bit_length(), 0)


@dataclass(frozen=True)
class TreeSum:
    """The total of vectors over the shards of all ranks.

    Attributes:
        ranges: the shards of each rank, contiguous, from the first to the last shard. With more than one rank the
            default group must have as many.
        rank: this one.
    """

    ranges: Sequence[range]
    rank: int = 0

    @property
    def shards(self) -> int:
        """Number of shards over all ranks."""
        return self.ranges[-1].stop

    @cached_property
    def nodes(self) -> list[list[Node]]:
        """Those of each rank."""
        return [cover(shards) for shards in self.ranges]

    def start(self, values: Sequence[Tensor]) -> PendingSum:
        """Begin to add; a collective where there are several ranks, which then goes on by itself.

        Args:
            values: a vector (n,) for each node of ``nodes[rank]``; they may be overwritten.
        """
        if len(self.ranges) == 1:
            return WholeVectors(self, values)
        most = max(map(len, self.nodes))
        if len(self.ranges) * most * values[0].numel() <= WHOLE:
            return self._start_whole(values, most)
        return self._start_slices(values)

    def _start_whole(self, values: Sequence[Tensor], most: int) -> PendingSum:
        mine = values[0].new_zeros(most, values[0].numel())
        torch.stack(list(values), out=mine[: len(values)])
        received = mine.new_empty(len(self.ranges) * most, mine.shape[1])
        work = _all_gather(received, mine, async_op=True)
        places = [rank * most + place for rank, nodes in enumerate(self.nodes) for place in range(len(nodes))]
        rows = received.unbind()
        return WholeVectors(self, [rows[place] for place in places], work)

    def _start_slices(self, values: Sequence[Tensor]) -> PendingSum:
        size, ranks = values[0].numel(), len(self.ranges)
        slice_size = -(-size // ranks)
        # What fills up the last slices is whatever lay there: it is added up with its like, and left out of the result.
        sent = values[0].new_empty(ranks, len(values), slice_size)
        for place, value in enumerate(values):
            for rank, piece in enumerate(torch.split(value, slice_size)):
                sent[rank, place, : piece.numel()] = piece
        received = sent.new_empty(sum(map(len, self.nodes)), slice_size)
        work = dist.all_to_all_single(
            received.view(-1),
            sent.view(-1),
            [len(nodes) * slice_size for nodes in self.nodes],
            [len(values) * slice_size] * ranks,
            async_op=True,
        )
        return Slices(self, size, (sent, received), work)

    def finish(self, values: Iterable[Tensor]) -> Tensor:
        """The total from the vectors of all ranks' nodes, in order; they may be overwritten."""
        nodes = [node for of_rank in self.nodes for node in of_rank]
        return finish(dict(zip(nodes, values, strict=True)), self.shards, Tensor.add_)


class PendingSum(Protocol):
    """A total that is being added up: call ``gather`` and then ``result``, in the same order of sums on every rank."""

    def gather(self) -> None:
        """Do what is left to do for this rank, and begin to gather it."""
        ...

    def result(self) -> Tensor:
        """The total (n,), the same bits on every rank."""
        ...


@dataclass
class WholeVectors:
    """The vectors of all nodes are on their way to every rank."""

    tree: TreeSum
    values: Sequence[Tensor]
    work: dist.Work | None = None

    def gather(self) -> None:
        """Nothing: every rank gets everything."""

    def result(self) -> Tensor:
        """The whole tree."""
        _wait(self.work)
        return self.tree.finish(self.values)


@dataclass
class Slices:
    """Each rank finishes the tree on its slice of the vectors; slices are on their way."""

    tree: TreeSum
    size: int
    moving: tuple[Tensor, Tensor]
    work: dist.Work | None

    def gather(self) -> None:
        """Finish the tree on this rank's slice and begin to gather the slices."""
        _wait(self.work)
        mine = self.tree.finish(self.moving[1])
        total = mine.new_empty(len(self.tree.ranges) * mine.numel())
        self.moving = (mine, total)
        self.work = _all_gather(total, mine, async_op=True)

    def result(self) -> Tensor:
        """The slices side by side."""
        _wait(self.work)
        return self.moving[1][: self.size]


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
