"""The gradients of shards: taken from the parameters, added up in tree order, on their way while backward goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from launcher.processes.errors import SettingsError
from launcher.training.exact import CarryStack, PendingSum, TreeSum

BUCKET = 1 << 20
"""Numbers that travel at once: enough for throughput, few enough to leave before backward is through."""

ALIGNED = 16
"""Each gradient begins at a multiple of so many numbers: kernels take other ways with other alignments."""


@dataclass
class Bucket:
    """Parameters whose gradients travel together.

    Attributes:
        parameters: name and parameter, in the order in which backward is expected to reach them.
        dtype: that the gradients are added in.
        stack: the gradients of the shards so far.
        reached: parameters that the running backward is through with.
        pending: the sum over all ranks, once it is on its way.
    """

    parameters: list[tuple[str, Parameter]]
    dtype: torch.dtype
    stack: CarryStack[list[Tensor]] = field(default_factory=lambda: CarryStack(_add))
    reached: set[str] = field(default_factory=set)
    pending: PendingSum | None = None

    @property
    def is_full(self) -> bool:
        """Whether backward is through with all of it."""
        return len(self.reached) == len(self.parameters)

    def take(self, shard: int) -> list[bool]:
        """Move the gradients of ``shard`` from the parameters to the stack; which parameters had one."""
        had, values = [], []
        for name, p in self.parameters:
            gradient, p.grad = p.grad, None
            had.append(gradient is not None)
            value = torch.zeros_like(p) if gradient is None else gradient
            if value.layout != torch.strided:
                raise SettingsError(
                    f"batch.exact=true: parameter {name} gets a sparse gradient, and only dense ones are added in tree "
                    "order; set sparse=False in its layer, or batch.exact=false"
                )
            values.append(value.to(self.dtype))
        self.stack.push(shard, values)
        return had

    def send(self, tree: TreeSum) -> None:
        """After the rank's last shard: let the gradients go to the other ranks."""
        self.pending = tree.start([self._packed(values) for values in self.stack.clear()])

    def totals(self) -> list[Tensor]:
        """The gradients over all shards, one for each parameter, in memory as the parameter is."""
        assert self.pending is not None, "send comes before totals"  # noqa: S101 - our own mistake
        flat, self.pending = self.pending.result(), None
        return self._views(flat)

    def _packed(self, values: list[Tensor]) -> Tensor:
        flat = values[0].new_zeros(sum(aligned(p.numel()) for _, p in self.parameters))
        torch._foreach_copy_(self._views(flat), values)
        return flat

    def _views(self, flat: Tensor) -> list[Tensor]:
        sizes = [aligned(p.numel()) for _, p in self.parameters]
        starts: Iterator[int] = accumulate(sizes, initial=int(flat.storage_offset()))
        return [
            flat.as_strided(p.shape, dense_strides(p), start)
            for start, (_, p) in zip(starts, self.parameters, strict=False)
        ]


class ShardGradients:
    """The gradients of a model, shard by shard.

    With several ranks, what backward of a rank's last shard has finished travels while backward goes on.

    Args:
        model: whose parameters learn.
        tree: adds over shards.

    Attributes:
        count: parameters that learn.
    """

    def __init__(self, model: nn.Module, tree: TreeSum) -> None:
        self._tree = tree
        learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._buckets = buckets(learning[::-1])
        self.count = len(learning)
        self._shard, self._last, self._next = 0, False, 0
        self._had: list[bool] = []
        for bucket in self._buckets:
            for name, parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _, bucket=bucket, name=name: self._reached(bucket, name)
                )

    def begin(self, shard: int, last: bool) -> None:
        """Before the forward of ``shard``; ``last`` of this rank's in the step."""
        self._shard, self._last, self._next, self._had = shard, last, 0, []
        for bucket in self._buckets:
            bucket.reached.clear()

    def end(self) -> list[bool]:
        """After its backward: whether each parameter got a gradient."""
        while self._next < len(self._buckets):
            self._take_next()
        return self._had

    def gather(self) -> None:
        """Once every rank's gradients are on their way: finish the sums, bucket by bucket."""
        for bucket in self._buckets:
            if bucket.pending is not None:
                bucket.pending.gather()

    def finish(self, has: list[bool]) -> None:
        """Give each parameter its gradient over all shards; None where no shard had any."""
        whose = iter(has)
        for bucket in self._buckets:
            for (_, parameter), total in zip(bucket.parameters, bucket.totals(), strict=True):
                parameter.grad = total.to(parameter.dtype) if next(whose) else None

    def _reached(self, bucket: Bucket, name: str) -> None:
        """Backward is through with a parameter; buckets leave in the same order on every rank."""
        if name in bucket.reached:
            raise SettingsError(
                f"batch.exact=true: backward reaches parameter {name} more than once, as reentrant activation "
                "checkpointing does; use torch.utils.checkpoint with use_reentrant=False"
            )
        bucket.reached.add(name)
        while self._last and self._next < len(self._buckets) and self._buckets[self._next].is_full:
            self._take_next()

    def _take_next(self) -> None:
        bucket = self._buckets[self._next]
        self._had += bucket.take(self._shard)
        if self._last:
            bucket.send(self._tree)
        self._next += 1


def buckets(parameters: list[tuple[str, Parameter]]) -> list[Bucket]:
    """Cut ``parameters`` into buckets of about ``BUCKET`` numbers of one kind, in their order."""
    found: list[Bucket] = []
    room = 0
    for name, parameter in parameters:
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        if not found or room < parameter.numel() or found[-1].dtype != dtype:
            found.append(Bucket([], dtype))
            room = BUCKET
        found[-1].parameters.append((name, parameter))
        room -= parameter.numel()
    return found


def aligned(count: int) -> int:
    """The next multiple of ``ALIGNED``.

    >>> aligned(1), aligned(16)
    (16, 16)
    """
    return -(-count // ALIGNED) * ALIGNED


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of ``tensor`` where it fills its memory in some order of dimensions, else those of C order.

    >>> dense_strides(torch.empty(2, 3).t()), dense_strides(torch.empty(1, 3).expand(2, 3))
    ((1, 3), (3, 1))
    """
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != expected:
            return torch.empty(tensor.shape, device="meta").stride()
        expected *= size
    return tensor.stride()


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)
    return left
