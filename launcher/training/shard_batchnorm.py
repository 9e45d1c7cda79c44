"""BatchNorm by shard: the statistics of fixed groups of rows, whatever the number of ranks, without communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from launcher.processes.errors import SettingsError
from launcher.training.converted import ConvertedBatchNorm
from samplers.words import counted


@dataclass
class ShardLayout:
    """What the micro-batch in the model consists of: set before every forward, read by the layers.

    A copy of a model reads the same object, since it sees the same micro-batches; a model that was pickled has one
    shard again.

    Attributes:
        rows: of the micro-batch.
        count: shards in it; row ``i`` belongs to shard ``i % count``.
    """

    rows: int = 0
    count: int = 1

    def __deepcopy__(self, _memo: dict[int, Any]) -> ShardLayout:
        return self

    def __reduce__(self) -> tuple[type[ShardLayout], tuple[()]]:
        return ShardLayout, ()


class ShardBatchNorm(ConvertedBatchNorm):
    """BatchNorm that in training normalises each shard of the micro-batch by itself, in one forward.

    Outputs and gradients are those of plain BatchNorm called with one shard after the other. The running statistics
    are moved once per forward, to the average, weighted by rows, of where each shard alone would have moved them.

    Attributes:
        shards: what the micro-batch consists of.
        layer_name: the name of the layer in the model.
    """

    shards: ShardLayout
    layer_name: str

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that callers of BatchNorm know
        """Normalise ``input`` (rows, channels, ...); the memory format stays.

        Raises:
            SettingsError: where the first dimension is not that of the micro-batch, so that shards are not known.
        """
        if not self.training or self.shards.count == 1:
            return _BatchNorm.forward(self, input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        self._check_rows(input)
        momentum, channels_last = self.next_momentum(), _is_channels_last(input)
        normal, moved = [], []
        for piece in split_shards(input.movedim(1, -1) if channels_last else input.contiguous(), self.shards.count):
            output, running = self._normalise(piece, momentum, channels_last=channels_last)
            normal.append(output)
            moved.append(running * len(piece))
        for buffer, average in zip(self.tracked(), torch.cat(moved, 1).sum(1) / len(input), strict=True):
            buffer.copy_(average)
        rows = join_shards(normal)
        return rows.movedim(-1, 1) if channels_last else rows

    def _normalise(self, piece: Tensor, momentum: float, *, channels_last: bool) -> tuple[Tensor, Tensor]:
        """Normalise (rows of each shard, shards, ...): one BatchNorm, to which shards are more channels.

        Returns:
            The same shape, and where each shard moves the running statistics: (2 or 0, shards, channels).
        """
        shards = piece.shape[1]
        running = [buffer.repeat(shards) for buffer in self.tracked()]
        side_by_side = piece.movedim(1, -2).flatten(-2).movedim(-1, 1) if channels_last else piece.flatten(1, 2)
        normal = functional.batch_norm(
            side_by_side,
            running[0] if running else None,
            running[1] if running else None,
            _repeated(self.weight, shards),
            _repeated(self.bias, shards),
            training=True,
            momentum=momentum,
            eps=self.eps,
        )
        moved = torch.unflatten(torch.stack(running), 1, (shards, -1)) if running else piece.new_empty(0, 1)
        if not channels_last:
            return torch.unflatten(normal, 1, (shards, -1)), moved
        return torch.unflatten(normal.movedim(1, -1), -1, (shards, -1)).movedim(-2, 1), moved

    def _check_rows(self, rows: Tensor) -> None:
        if len(rows) != self.shards.rows:
            raise SettingsError(
                f"batchnorm=shard: layer {self.layer_name} gets {tuple(rows.shape)} where the micro-batch has "
                f"{counted(self.shards.rows, 'row')} in {counted(self.shards.count, 'shard')}: it can tell shards "
                "apart only where its first dimension is that of the rows; use batchnorm=local or batchnorm=sync, or "
                "batch.exact=true, which takes one shard at a time"
            )


def split_shards(rows: Tensor, count: int) -> list[Tensor]:
    """Deal ``rows`` out: row ``i`` goes to shard ``i % count``.

    Args:
        rows: (rows, ...).
        count: shards, at most as many as rows.

    Returns:
        Pieces of shards of equal size, (rows of each shard, shards, ...): all shards, a view; or first those that have
        one row more, then the others.

    >>> [piece.tolist() for piece in split_shards(torch.arange(5), 3)]
    [[[0, 1], [3, 4]], [[2]]]
    """
    each, longer = divmod(len(rows), count)
    even = torch.unflatten(rows[: each * count], 0, (each, count))
    if not longer:
        return [even]
    return [torch.cat([even[:, :longer], rows[None, each * count :]]), even[:, longer:].contiguous()]


def join_shards(pieces: Sequence[Tensor]) -> Tensor:
    """The rows in their order: the inverse of ``split_shards``.

    >>> join_shards(split_shards(torch.arange(5), 3)).tolist()
    [0, 1, 2, 3, 4]
    """
    if len(pieces) == 1:
        return pieces[0].flatten(0, 1)
    longer, shorter = pieces
    return torch.cat([torch.cat([longer[:-1], shorter], 1).flatten(0, 1), longer[-1]])


def _is_channels_last(rows: Tensor) -> bool:
    return not rows.is_contiguous() and rows.movedim(1, -1).is_contiguous()


def _repeated(values: Tensor | None, times: int) -> Tensor | None:
    return None if values is None else values.repeat(times)
