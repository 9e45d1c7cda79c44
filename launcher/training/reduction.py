"""How the gradients of all ranks become that of the global batch: averaged by DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.seeds import seed_streams
from launcher.training.batchnorm import combine_buffers
from launcher.training.buffers import StepBuffers
from launcher.training.shard_batchnorm import Shards
from samplers import Share


class Reduction(Protocol):
    """Joins what the ranks compute.

    Attributes:
        divides_by: what it divides the sum of the ranks' gradients by; a rank multiplies by it beforehand.
    """

    divides_by: int

    def begin(self, step: int) -> None:
        """Before anything of a step happens, the reading of its rows included."""
        ...

    def micro_batch(self, share: Share) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch."""
        ...

    def finish(self, losses: list[Tensor]) -> Tensor:
        """After the last micro-batch: the gradients are there.

        Args:
            losses: the sum of each micro-batch of this rank.

        Returns:
            This rank's part of the sum over all ranks.
        """
        ...

    def combine_buffers(self) -> None:
        """Give every rank the same buffers, before somebody reads them; a collective."""
        ...


@dataclass
class Averaged:
    """The ranks' gradients averaged in backward by DistributedDataParallel; the ranks' buffers when they are read.

    Attributes:
        model: wrapped in DistributedDataParallel where there are several ranks.
        seed: of the run.
        rank: this one.
        divides_by: number of ranks.
        weight: the part of the global batch that this rank takes.
        shards: told what each micro-batch consists of.
        buffers: kept the same for all micro-batches of a step; None: each micro-batch moves them on.
    """

    model: nn.Module
    seed: int = 0
    rank: int = 0
    divides_by: int = 1
    weight: float = 1.0
    shards: Shards = field(default_factory=Shards)
    buffers: StepBuffers | None = None

    def begin(self, step: int) -> None:
        """Random streams of their own for each step and rank, so that a run can be continued at any step."""
        seed_streams(self.seed, "step", step, "rank", self.rank)

    @contextmanager
    def micro_batch(self, share: Share) -> Iterator[None]:
        """Gradients are reduced over the ranks in the backward of the last micro-batch alone."""
        self.shards.rows, self.shards.count = share.rows, max(1, len(share.shards))
        moves = nullcontext() if self.buffers is None else self.buffers.piece(share.rows, share.last_in_step)
        with self._synchronised(share.last_in_step), moves:
            yield

    def finish(self, losses: list[Tensor]) -> Tensor:
        """The sum over this rank's micro-batches."""
        return torch.stack(losses).sum()

    def combine_buffers(self) -> None:
        """Average running statistics, weighted by rows."""
        combine_buffers(self.model, self.weight)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()
