"""Buffers of a step that is computed in pieces: each piece begins with the step's first values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from launcher.processes.errors import SettingsError


class StepBuffers:
    """The buffers of a model, so that the pieces of a step leave them as their average.

    Each piece of the step (a shard, a micro-batch) begins with the values from before the step; what becomes of them
    is averaged over the pieces, weighted by rows. Running averages are linear, so for BatchNorm this is one update with
    the average of the pieces' statistics.

    Args:
        model: whose buffers they are.
        chosen: which modules' buffers; all where None.

    Raises:
        SettingsError: for a buffer of complex numbers.
    """

    def __init__(self, model: nn.Module, chosen: Callable[[nn.Module], bool] | None = None) -> None:
        # By owner and name: a module may put another tensor in the place of its buffer.
        self._places = [
            (owner, key, f"{prefix}.{key}" if prefix else key)
            for prefix, owner in model.named_modules()
            if chosen is None or chosen(owner)
            for key, buffer in owner._buffers.items()  # noqa: SLF001 - the public iterators give values, not owners
            if buffer is not None
        ]
        for owner, key, name in self._places:
            if getattr(owner, key).is_complex():
                raise SettingsError(f"model: buffer {name} is complex, which cannot be averaged; keep two of reals")
        start = self._now()
        sizes = [buffer.numel() for buffer in start]
        self._flat = torch.zeros(sum(sizes), dtype=torch.float64, device=start[0].device if start else None)
        parts = torch.split(self._flat, sizes) if start else ()
        self._parts = [part.view_as(buffer) for part, buffer in zip(parts, start, strict=True)]
        self._start, self._flat_start = start, self._flat
        self._rows: list[int] = []
        self._ends: list[Tensor] = []

    @contextmanager
    def piece(self, rows: int, last: bool) -> Iterator[None]:
        """Around one piece, of so many rows, of a step whose pieces are all computed here."""
        self.begin_piece()
        yield
        self.end_piece(rows)
        if last:
            self.settle(self.changes().sum(0), sum(self._rows))

    def begin_piece(self) -> None:
        """Before a piece: keep the values if it is the first of a step, else put the kept values back."""
        if self._ends:
            copy(self._now(), self._start)
        else:
            self._start = [buffer.detach().clone() for buffer in self._now()]
            self._flat_start = self._flatten()

    def end_piece(self, rows: int) -> None:
        """After a piece of so many rows: note the values that it came to."""
        self._rows.append(rows)
        self._ends.append(self._flatten())

    def changes(self) -> Tensor:
        """Of each piece, its rows times what the values have changed by, (pieces, numbers) float64."""
        ends = torch.stack(self._ends)
        return change(self._flat_start, ends) * torch.tensor(self._rows, device=ends.device)[:, None]

    def settle(self, total: Tensor, rows: float | Tensor) -> None:
        """After the last piece: move the kept values by the average change.

        Args:
            total: the changes of all pieces added up.
            rows: of all pieces.

        Raises:
            ValueError: for whole numbers that came out differently in different pieces, of which there is no average.
        """
        sizes = [part.numel() for part in self._parts]
        means = torch.split(total / rows, sizes) if sizes else ()
        settled = []
        for (_, _, name), before, now, mean in zip(self._places, self._start, self._now(), means, strict=True):
            if before.is_floating_point():
                settled.append((before.double() + mean.view_as(before)).to(before.dtype))
            elif torch.equal(mean.view_as(before), change(before.double(), now.double())):
                settled.append(now)
            else:
                raise ValueError(
                    f"buffer {name} ({str(before.dtype).removeprefix('torch.')}) comes out differently in the shards "
                    "of one step: a count must move by the same in each, or be kept outside the buffers"
                )
        copy(self._now(), settled)
        self._rows, self._ends = [], []

    def _now(self) -> list[Tensor]:
        return [owner._buffers[key] for owner, key, _ in self._places]  # noqa: SLF001 - ten times quicker

    def _flatten(self) -> Tensor:
        """The numbers of all buffers as they are now, (numbers,) float64."""
        copy(self._parts, self._now())
        return self._flat.clone()


def change(before: Tensor, now: Tensor) -> Tensor:
    """What to add to ``before`` to get ``now``, both float64; 0 where an infinite value, as of a mask, has stayed."""
    return (now - before).masked_fill_(now == before, 0)


@torch.no_grad()
def copy(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors one by one, whatever their dtypes, in few operations."""
    if to:
        torch._foreach_copy_(to, values)
