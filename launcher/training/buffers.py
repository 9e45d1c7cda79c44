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
        self._start: list[Tensor] = []
        self._rows: list[int] = []
        self._changes: list[Tensor] = []

    @contextmanager
    def piece(self, rows: int, last: bool) -> Iterator[None]:
        """Around one piece, of so many rows, of a step whose pieces are all computed here."""
        self.restore() if self._changes else self.begin()
        yield
        self._rows.append(rows)
        self._changes.append(self.change(rows))
        if last:
            self.settle(torch.stack(self._changes).sum(0), sum(self._rows))
            self._rows, self._changes = [], []

    def begin(self) -> None:
        """Before the first piece of a step: keep the values."""
        self._start = [buffer.detach().clone() for buffer in self._now()]

    def restore(self) -> None:
        """Before every further piece: put the kept values back."""
        self._set(self._start)

    def change(self, rows: int) -> Tensor:
        """After a piece of so many rows: ``rows`` times what the values have changed by, (numbers,) float64."""
        changes = [change_of(*pair).flatten() for pair in zip(self._start, self._now(), strict=True)]
        return torch.cat(changes) * rows if changes else torch.zeros(0, dtype=torch.float64)

    def settle(self, total: Tensor, rows: float | Tensor) -> None:
        """After the last piece: move the kept values by the average change.

        Args:
            total: the changes of all pieces added up.
            rows: of all pieces.

        Raises:
            ValueError: for whole numbers that came out differently in different pieces, of which there is no average.
        """
        sizes = [before.numel() for before in self._start]
        changes = torch.split(total / rows, sizes) if sizes else ()
        settled = []
        for (_, _, name), before, now, change in zip(self._places, self._start, self._now(), changes, strict=True):
            if before.is_floating_point():
                settled.append((before.double() + change.view_as(before)).to(before.dtype))
            elif torch.equal(change.view_as(before), change_of(before, now)):
                settled.append(now)
            else:
                raise ValueError(
                    f"buffer {name} ({str(before.dtype).removeprefix('torch.')}) comes out differently in the shards "
                    "of one step: a count must move by the same in each, or be kept outside the buffers"
                )
        self._set(settled)

    def _now(self) -> list[Tensor]:
        return [getattr(owner, key) for owner, key, _ in self._places]

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._now(), values, strict=True):
            buffer.copy_(value)


def change_of(before: Tensor, now: Tensor) -> Tensor:
    """What to add to ``before`` to get ``now``, float64; nothing where an infinite value, as of a mask, has stayed."""
    change = now.double() - before.double()
    return change.masked_fill_(now == before, 0)
