"""Buffers: one value for all pieces of a step, and for all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from launcher.processes.errors import SettingsError

log = logging.getLogger(__name__)

SHARED = (
    "note: the model changes its buffer %s while it trains: each shard of a step starts from the same value, and the "
    "average of what they make of it, weighted by rows, is what the next step starts from"
)


class Place(NamedTuple):
    """Where a buffer is: by owner and key, since a module may put another tensor in its place."""

    owner: nn.Module
    key: str
    name: str

    @property
    def value(self) -> Tensor:
        """The buffer as it is now."""
        buffer: Tensor = self.owner._buffers[self.key]  # type: ignore[assignment]  # noqa: SLF001 - ten times quicker
        return buffer


class Piece(NamedTuple):
    """A piece of a step that is done.

    Attributes:
        rows: that it has.
        ends: number of each buffer that moved, and its value afterwards.
    """

    rows: int
    ends: dict[int, Tensor]


class StepBuffers:
    """The buffers of a model, so that the pieces of a step leave them as their average.

    Each piece of the step (a shard, a micro-batch) begins with the values from before the step. What they are moved by
    is averaged over the pieces, weighted by rows: for running averages this is one update with the average of the
    pieces' statistics. Whole numbers must move alike in every piece.

    Buffers that never move cost next to nothing. In the first step those that move are found by value, afterwards by
    torch's count of changes, which does not see a buffer that is first changed by ``.data`` in a later step.

    Args:
        model: whose buffers they are.
        chosen: modules whose buffers move; where None, the buffers of all modules are watched.

    Attributes:
        places: of all buffers.
        moving: numbers of those that are known to move.

    Raises:
        SettingsError: for a buffer that cannot be averaged or put back.
    """

    def __init__(self, model: nn.Module, chosen: Callable[[nn.Module], bool] | None = None) -> None:
        self.places = [
            Place(owner, key, f"{prefix}.{key}" if prefix else key)
            for prefix, owner in model.named_modules()
            if chosen is None or chosen(owner)
            for key, buffer in owner._buffers.items()  # noqa: SLF001 - the public iterators give values, not owners
            if buffer is not None
        ]
        self._empty = [
            Place(owner, key, f"{prefix}.{key}" if prefix else key)
            for prefix, owner in model.named_modules()
            for key, buffer in owner._buffers.items()  # noqa: SLF001 - the public iterators leave out what is None
            if buffer is None and chosen is None
        ]
        for place in self.places:
            _check(place)
        self.moving: list[int] = [] if chosen is None else list(range(len(self.places)))
        self._start: list[Tensor] = []
        self._seen: list[tuple[Tensor, int]] = []
        self._pieces: list[Piece] = []
        self._by_value = True

    @contextmanager
    def piece(self, rows: int, last: bool) -> Iterator[None]:
        """Around one piece, of so many rows, of a step whose pieces are all computed here."""
        self.begin_piece()
        yield
        self.end_piece(rows)
        if last:
            self.settle(self.moves(self.moving).sum(0), sum(piece.rows for piece in self._pieces), self.moving)
            self.end_step()

    def begin_piece(self) -> None:
        """Before a piece: keep the values if it is the first of a step, else put the kept values back."""
        if not self._start:
            self._start = [place.value.detach().clone() for place in self.places]
        elif self._pieces:
            moved = {number for piece in self._pieces for number in piece.ends}
            copy([self.places[n].value for n in moved], [self._start[n] for n in moved])
        else:
            moved = {number for number in range(len(self.places)) if number in self.moving or self._touched(number)}
            copy([self._start[n] for n in moved], [self.places[n].value for n in moved])
        self._seen = [(place.value, place.value._version) for place in self.places]  # noqa: SLF001 - no public name

    def end_piece(self, rows: int) -> Piece:
        """After a piece of so many rows: what moved, and where to."""
        self._check_empty()
        moved = [n for n in range(len(self.places)) if n in self.moving or self._touched(n) or self._differs(n)]
        for number in moved:
            self._check_move(number)
        piece = Piece(rows, {number: self.places[number].value.detach().clone() for number in moved})
        self._pieces.append(piece)
        return piece

    def moves(self, numbers: list[int]) -> Tensor:
        """Of each piece: its rows times what it moved these buffers by, and times the squares for whole numbers.

        Returns:
            (pieces, numbers) float64.
        """
        parts = [torch.zeros(len(self._pieces), 0, dtype=torch.float64)]
        for number in numbers:
            start = self._start[number]
            ends = torch.stack([piece.ends.get(number, start) for piece in self._pieces])
            move = difference(start.double(), ends.double()).reshape(len(ends), start.numel())
            parts += [move] if start.is_floating_point() else [move, move.square()]
        moves = torch.cat([part.to(parts[-1].device) for part in parts], dim=1)
        return moves * moves.new_tensor([[piece.rows] for piece in self._pieces])

    def settle(self, total: Tensor, rows: float, numbers: list[int]) -> None:
        """After the last piece: move the kept values of these buffers by the average.

        Args:
            total: what ``moves`` gives, added up over all pieces of all ranks.
            rows: of all these pieces.
            numbers: of the buffers.

        Raises:
            SettingsError: on every rank, for whole numbers that moved by other amounts in other pieces.
        """
        sizes = [self._start[n].numel() for n in numbers for _ in range(2 - self._start[n].is_floating_point())]
        means = iter(torch.split(total / rows, sizes) if sizes else ())
        values = [self._settled(number, means) for number in numbers]
        copy([self.places[number].value for number in numbers], values)

    def end_step(self) -> None:
        """The next piece is the first of another step."""
        self._pieces, self._by_value = [], False

    def begin_to_move(self, numbers: list[int]) -> None:
        """From now on these buffers are known to move; says so where they are not running averages of torch's."""
        self.moving = sorted({*self.moving, *numbers})
        for owner, _, name in (self.places[n] for n in numbers if self._start[n].is_floating_point()):
            if not isinstance(owner, _NormBase):
                log.info(SHARED, name)

    def _check_move(self, number: int) -> None:
        place, start = self.places[number], self._start[number]
        if start.is_complex():
            raise SettingsError(
                f"batch.exact=true: buffer {place.name} is complex and moves, and only real numbers are averaged; keep "
                "it as two buffers of reals, or set batch.exact=false"
            )
        if place.value.shape != start.shape:
            raise SettingsError(
                f"batch.exact=true: buffer {place.name} goes from shape {tuple(start.shape)} to "
                f"{tuple(place.value.shape)} within a step and has no average; keep its shape, or set batch.exact=false"
            )

    def _check_empty(self) -> None:
        for owner, key, name in self._empty:
            if owner._buffers[key] is not None:  # noqa: SLF001 - the public iterators leave out what is None
                raise SettingsError(
                    f"batch.exact=true: buffer {name} was None and is filled in a step; register it with a value, or "
                    "set batch.exact=false"
                )

    def _touched(self, number: int) -> bool:
        seen, version = self._seen[number]
        now = self.places[number].value
        return now is not seen or now._version != version  # noqa: SLF001 - no public name

    def _differs(self, number: int) -> bool:
        return self._by_value and not torch.equal(self.places[number].value, self._start[number])

    def _settled(self, number: int, means: Iterator[Tensor]) -> Tensor:
        """The value of a buffer after the step, from the means of moves and, for whole numbers, of their squares."""
        start, move = self._start[number], next(means)
        if not start.is_floating_point() and not torch.equal(next(means), move.square()):
            raise SettingsError(f"batch.exact=true: {_uneven(self.places[number])}, or set batch.exact=false")
        return (start.double() + move.view_as(start)).to(start.dtype)


def difference(before: Tensor, now: Tensor) -> Tensor:
    """What to add to ``before`` to get ``now``, both float64; 0 where an infinite value, as of a mask, has stayed."""
    return (now - before).masked_fill_(now == before, 0)


@torch.no_grad()
def copy(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors one by one, whatever their dtypes, in few operations."""
    if to:
        torch._foreach_copy_(to, values)


def _check(place: Place) -> None:
    value = place.value
    if value.layout != torch.strided:
        raise SettingsError(
            f"batch.exact=true: buffer {place.name} is sparse, and only dense ones are put back for each shard; "
            "register its .to_dense(), or set batch.exact=false"
        )
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        raise SettingsError(
            f"batch.exact=true: buffer {place.name} is expanded, and several of its numbers share one place in memory; "
            "register its .clone(), or set batch.exact=false"
        )


def _uneven(place: Place) -> str:
    """What is wrong where the shards of a step count a buffer of whole numbers on by different amounts."""
    if isinstance(place.owner, _NormBase) and place.key == "num_batches_tracked":
        layer = place.name.removesuffix(f".{place.key}")
        return (
            f"layer {layer} is used in some shards of a step and left out in others, as by LayerDrop, so that its "
            f"count of batches ({place.name}) differs from shard to shard; let every shard use it, give it "
            "track_running_stats=False"
        )
    return (
        f"buffer {place.name} ({str(place.value.dtype).removeprefix('torch.')}) changes by different amounts in the "
        "shards of one step, and whole numbers have no average; make it a buffer of floats"
    )


def combine_buffers(model: nn.Module, weight: float) -> None:
    """Give every rank the same buffers; a collective over the default group, nothing without one.

    Running means and variances become their average weighted by ``weight``, the part of the global batch that this
    rank takes (the weights of all ranks sum to one). Averaging is linear, as the running averages are, so how often
    they are combined does not change what comes out. All other buffers are taken from rank 0; where another rank's
    differ, that is said.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    running = running_statistics(model)
    if running:
        _average(running, weight)
    averaged = {id(buffer) for buffer in running}
    others = {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in averaged}
    if others:
        _take_from_rank_zero(others)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of all normalisation layers, in the order of the modules."""
    layers = [m for m in model.modules() if isinstance(m, _NormBase)]
    return [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]


def _average(running: list[Tensor], weight: float) -> None:
    flat = torch.cat([buffer.double().flatten() for buffer in running]) * weight
    dist.all_reduce(flat)
    sizes = [buffer.numel() for buffer in running]
    for buffer, mean in zip(running, torch.split(flat, sizes), strict=True):
        buffer.copy_(mean.view_as(buffer))


def _take_from_rank_zero(buffers: dict[str, Tensor]) -> None:
    mine = {name: buffer.contiguous().reshape(-1).view(torch.uint8) for name, buffer in buffers.items()}
    flat = torch.cat(list(mine.values()))
    dist.broadcast(flat, 0)
    pieces = torch.split(flat, [piece.numel() for piece in mine.values()])
    for (name, buffer), piece in zip(buffers.items(), pieces, strict=True):
        if not torch.equal(piece, mine[name]):
            log.warning(
                "buffer %s of rank 0 is kept, this rank's differs; ddp.broadcast_buffers=true keeps them equal", name
            )
            buffer.copy_(piece.clone().view(buffer.dtype).view_as(buffer))
