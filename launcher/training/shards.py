"""Exact mode: a step computed shard by shard and added up in tree order, whoever computes which shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from launcher.processes.errors import SettingsError, first_line
from launcher.seeds import seed_streams
from launcher.training.buffers import StepBuffers
from launcher.training.exact import CarryStack, PendingSum, TreeSum, cover, finish
from samplers import Share

BUCKET = 1 << 20
"""Numbers that travel at once: enough for throughput, few enough to leave before backward is through."""

LOSS, ROWS, FIRST_FLAG = 0, 1, 2
"""Where the small numbers of a shard stand in their vector; buffers follow the flags."""


class InTreeOrder:
    """The gradients, buffers and losses of all shards, added in the order of one tree over them (see ``exact``).

    Each shard begins with the buffers from before the step, and with random streams of its own.

    Args:
        model: not wrapped; gets the weights and buffers of rank 0. A collective where there are several ranks.
        seed: of the run.
        ranges: the shards of each rank.
        rank: this one.

    Raises:
        SettingsError: for parts of the model that cannot be made exact.
    """

    divides_by = 1

    def __init__(self, model: nn.Module, seed: int, ranges: Sequence[range], rank: int) -> None:
        self._check(model)
        self._seed, self._rank, self._step = seed, rank, 0
        self._tree = TreeSum(ranges, rank)
        self._buffers = StepBuffers(model)
        self._gradients = ShardGradients(model, self._tree)
        self._done: list[tuple[int, list[int]]] = []
        if len(ranges) > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)

    def begin(self, step: int) -> None:
        """Random streams for whatever is drawn outside the shards."""
        self._step = step
        seed_streams(self._seed, "step", step, "rank", self._rank)

    @contextmanager
    def micro_batch(self, share: Share) -> Iterator[None]:
        """One shard: from the buffers from before the step, with a random stream of its own."""
        (shard,) = share.shards
        self._buffers.begin_piece()
        seed_streams(self._seed, "step", self._step, "shard", shard)
        self._gradients.begin(shard, share.last_in_step)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise SettingsError(
                f"batch.exact=true: {first_line(error)}: replace that operation, or set batch.exact=false"
            ) from error
        self._done.append((shard, [share.rows, *self._gradients.end()]))
        self._buffers.end_piece(share.rows)

    def finish(self, losses: list[Tensor]) -> Tensor:
        """The loss of all shards on rank 0 and 0 elsewhere, so that adding over the ranks changes no bit."""
        numbers = [known for _, known in self._done]
        device = losses[0].device
        known = torch.tensor(numbers, dtype=torch.float64, device=device)
        small: CarryStack[Tensor] = CarryStack(Tensor.add_)
        vectors = torch.cat([torch.stack(losses).double()[:, None], known, self._buffers.changes().to(device)], dim=1)
        for (shard, _), vector in zip(self._done, vectors, strict=True):
            small.push(shard, vector)
        self._done = []
        pending = self._tree.start(small.clear())
        self._gradients.gather()
        pending.gather()
        total = pending.result()
        first_buffer = FIRST_FLAG + self._gradients.count
        self._gradients.finish((total[FIRST_FLAG:first_buffer] > 0).tolist())
        self._buffers.settle(total[first_buffer:], total[ROWS])
        return total[LOSS] if self._rank == 0 else torch.zeros_like(total[LOSS])

    def combine_buffers(self) -> None:
        """They are the same on every rank after every step."""

    @staticmethod
    def _check(model: nn.Module) -> None:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.SyncBatchNorm):
                raise SettingsError(
                    f"batch.exact=true: layer {name} is a SyncBatchNorm, whose statistics are those of all ranks' "
                    "rows; use torch.nn.BatchNorm, which sees one shard at a time"
                )
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not parameter.is_floating_point():
                raise SettingsError(
                    f"batch.exact=true: parameter {name} is {parameter.dtype}, and only real numbers are added in "
                    "tree order; keep it as two parameters of reals, or set batch.exact=false"
                )


@dataclass
class Bucket:
    """Parameters whose gradients travel together.

    Attributes:
        parameters: name and parameter, in the order in which backward is expected to reach them.
        dtype: that the gradients are added in.
        stack: the gradients of the shards so far.
        missing: parameters that the running backward has not reached.
        pending: the sum over all ranks, once it is on its way.
    """

    parameters: list[tuple[str, Parameter]]
    dtype: torch.dtype
    stack: CarryStack[list[Tensor]] = field(default_factory=lambda: CarryStack(_add))
    missing: int = 0
    pending: PendingSum | None = None

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
        orders = [memory_order(p) for _, p in self.parameters]
        packed = [
            torch.cat([value.permute(order).reshape(-1) for value, order in zip(values, orders, strict=True)])
            for values in self.stack.clear()
        ]
        self.pending = tree.start(packed)

    def totals(self, tree: TreeSum) -> list[Tensor]:
        """The gradients over all shards, one for each parameter."""
        if self.pending is None:
            nodes = cover(tree.ranges[0])
            return finish(dict(zip(nodes, self.stack.clear(), strict=True)), tree.shards, _add)
        flat, self.pending = self.pending.result(), None
        parts = torch.split(flat, [p.numel() for _, p in self.parameters])
        return [unpacked(part, p) for part, (_, p) in zip(parts, self.parameters, strict=True)]


class ShardGradients:
    """The gradients of a model, shard by shard.

    With several ranks, what backward of a rank's last shard has finished travels while backward goes on.

    Args:
        model: whose parameters learn.
        tree: adds over shards.
    """

    def __init__(self, model: nn.Module, tree: TreeSum) -> None:
        self._tree = tree
        self._travels = len(tree.ranges) > 1
        learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._buckets = buckets(learning[::-1])
        self.count = len(learning)
        self._shard, self._last, self._next = 0, False, 0
        self._had: list[bool] = []
        for bucket in self._buckets if self._travels else ():
            for _, parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _, bucket=bucket: self._reached(bucket)
                )

    def begin(self, shard: int, last: bool) -> None:
        """Before the forward of ``shard``; ``last`` of this rank's in the step."""
        self._shard, self._last, self._next, self._had = shard, last, 0, []
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def end(self) -> list[bool]:
        """After its backward: whether each parameter got a gradient."""
        self._check_taken()
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
        place = 0
        for bucket in self._buckets:
            for (_, parameter), total in zip(bucket.parameters, bucket.totals(self._tree), strict=True):
                parameter.grad = total.to(parameter.dtype) if has[place] else None
                place += 1

    def _reached(self, bucket: Bucket) -> None:
        """Backward is through with a parameter; buckets leave in the same order on every rank."""
        bucket.missing -= 1
        while self._last and self._next < len(self._buckets) and self._buckets[self._next].missing <= 0:
            self._take_next()

    def _take_next(self) -> None:
        bucket = self._buckets[self._next]
        self._had += bucket.take(self._shard)
        if self._last and self._travels:
            bucket.send(self._tree)
        self._next += 1

    def _check_taken(self) -> None:
        for bucket in self._buckets[: self._next]:
            for name, parameter in bucket.parameters:
                if parameter.grad is not None:
                    raise SettingsError(
                        f"batch.exact=true: backward reaches parameter {name} more than once, as reentrant activation "
                        "checkpointing does; use torch.utils.checkpoint with use_reentrant=False"
                    )


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


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions of ``tensor`` from the slowest to the fastest, as they lie in memory."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda d: (-strides[d], d)))


def unpacked(flat: Tensor, like: Tensor) -> Tensor:
    """A view of ``flat``, which lies in the memory order of ``like``, with the shape of ``like``."""
    order = memory_order(like)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return flat.view([like.shape[d] for d in order]).permute(inverse)


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)
    return left
