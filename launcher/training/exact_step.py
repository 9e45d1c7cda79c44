"""Exact mode: a step computed shard by shard and added up in tree order, whoever computes which shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.processes.errors import SettingsError
from launcher.seeds import seed_streams
from launcher.training.buffers import StepBuffers
from launcher.training.exact import CarryStack, PendingSum, TreeSum
from launcher.training.shard_gradients import ShardGradients
from samplers import Share


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
        check_layers(model)
        self._seed, self._rank, self._step = seed, rank, 0
        self._tree = TreeSum(ranges, rank)
        self._parameters = list(model.named_parameters())
        self._by_value = True
        self._buffers = StepBuffers(model)
        self._gradients = ShardGradients(model, self._tree)
        self._shards: list[int] = []
        self._losses: list[Tensor] = []
        self._counts: list[list[int]] = []
        if len(ranges) > 1:
            take_from_rank_zero([*model.parameters(), *model.buffers()])

    def begin(self, step: int) -> None:
        """Random streams for whatever is drawn outside the shards."""
        self._step = step
        seed_streams(self._seed, "step", step, "rank", self._rank)

    @contextmanager
    def micro_batch(self, share: Share) -> Iterator[Callable[[Tensor], None]]:
        """One shard: from the buffers from before the step, with a random stream of its own."""
        (shard,) = share.shards
        self._buffers.begin_piece()
        before = [(p._version, p.detach().clone() if self._by_value else p) for _, p in self._parameters]  # noqa: SLF001 - no public name
        seed_streams(self._seed, "step", self._step, "shard", shard)
        self._gradients.begin(shard, share.last_in_step)
        yield self._losses.append
        self._check_unchanged(before)
        had = self._gradients.end()
        piece = self._buffers.end_piece(share.rows)
        moved = [number in piece.ends for number in range(len(self._buffers.places))]
        self._shards.append(shard)
        self._counts.append([share.rows, *had, *moved])

    def finish(self) -> Tensor:
        """The loss of all shards on rank 0 and 0 elsewhere, so that adding over the ranks changes no bit."""
        losses = torch.stack(self._losses).double()[:, None]
        moves = self._buffers.moves(self._buffers.moving).to(losses.device)
        pending = self._start(torch.cat([losses, losses.new_tensor(self._counts), moves], dim=1))
        self._gradients.gather()
        pending.gather()
        total = pending.result()
        sizes = [1, 1, self._gradients.count, len(self._buffers.places)]
        loss, rows, had, moved = torch.split(total[: sum(sizes)], sizes)
        self._gradients.finish((had > 0).tolist())
        self._settle(rows.item(), (moved > 0).tolist(), total[sum(sizes) :])
        seed_streams(self._seed, "step", self._step, "optimizer")  # some draw, and must draw alike on all ranks
        return loss[0].clone() if self._rank == 0 else torch.zeros_like(loss[0])

    def _start(self, numbers: Tensor) -> PendingSum:
        """Begin to add up rows of numbers, one for each shard of this rank."""
        stack: CarryStack[Tensor] = CarryStack(Tensor.add_)
        for shard, row in zip(self._shards, numbers, strict=True):
            stack.push(shard, row)
        return self._tree.start(stack.clear())

    def combine_buffers(self) -> None:
        """They are the same on every rank after every step."""

    def _settle(self, rows: float, moved: list[bool], moves: Tensor) -> None:
        """Give all buffers their averages; those that were not known to move travel now, and from the next step on."""
        new = [n for n, flag in enumerate(moved) if flag and n not in self._buffers.moving]
        self._buffers.settle(moves, rows, self._buffers.moving)
        if new:
            pending = self._start(self._buffers.moves(new))
            pending.gather()
            self._buffers.settle(pending.result(), rows, new)
            self._buffers.begin_to_move(new)
        self._buffers.end_step()
        self._by_value = False
        self._shards, self._losses, self._counts = [], [], []

    def _check_unchanged(self, before: list[tuple[int, Tensor]]) -> None:
        """By torch's count of changes, and in the first step by value, since ``.data`` is not counted."""
        for (name, parameter), (version, value) in zip(self._parameters, before, strict=True):
            if parameter._version != version or not (value is parameter or are_same(value, parameter)):  # noqa: SLF001 - no public name
                raise SettingsError(
                    f"batch.exact=true: forward or backward changes parameter {name} (as max_norm of an embedding or a "
                    "moving average of weights does), once for each shard of a device; change it in after_step(model) "
                    "of the task, keep it as a buffer, or set batch.exact=false"
                )


def check_layers(model: nn.Module) -> None:
    """Refuse what cannot be made exact.

    Raises:
        SettingsError: naming the layer or parameter, with the reason and a remedy.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise SettingsError(
                f"batch.exact=true: layer {name} is a SyncBatchNorm, whose statistics are those of all ranks' rows; "
                "set batchnorm=shard, which gives it those of one shard, or use torch.nn.BatchNorm1d, 2d or 3d"
            )
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise SettingsError(
                f"batch.exact=true: layer {name} has max_norm={layer.max_norm}, with which every forward changes its "
                "weight; leave max_norm out, or set batch.exact=false"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise SettingsError(
                f"batch.exact=true: parameter {name} is {parameter.dtype}, and only real numbers are added in tree "
                "order; keep it as two parameters of reals, or set batch.exact=false"
            )


def are_same(values: Tensor, others: Tensor) -> bool:
    """Whether two tensors hold the same numbers, or both none."""
    return torch.equal(values, others) or bool(((values == others) | (values.isnan() & others.isnan())).all())


@torch.no_grad()
def take_from_rank_zero(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0; a collective."""
    for tensor in tensors:
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(values.view(-1).view(torch.uint8), 0)  # bytes: not every backend knows every kind of number
        tensor.copy_(values)
