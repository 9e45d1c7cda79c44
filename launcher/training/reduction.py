"""How the gradients of all ranks become that of the global batch: averaged by DistributedDataParallel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.processes.errors import SettingsError, few
from launcher.seeds import seed_streams
from launcher.training.buffers import StepBuffers, combine_buffers
from launcher.training.shard_batchnorm import ShardLayout
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

    def micro_batch(self, share: Share) -> AbstractContextManager[Callable[[Tensor], None]]:
        """Around forward and backward of one micro-batch; gives what takes the sum of its losses."""
        ...

    def finish(self) -> Tensor:
        """After the last micro-batch: the gradients are there.

        Returns:
            This rank's part of the sum of losses over all ranks.
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
    shards: ShardLayout = field(default_factory=ShardLayout)
    buffers: StepBuffers | None = None
    _step: int = 0
    _losses: list[Tensor] = field(default_factory=list)

    def begin(self, step: int) -> None:
        """Random streams of their own for each step and rank, so that a run can be continued at any step."""
        self._step = step
        seed_streams(self.seed, "step", step, "rank", self.rank)

    @contextmanager
    def micro_batch(self, share: Share) -> Iterator[Callable[[Tensor], None]]:
        """Gradients are reduced over the ranks in the backward of the last micro-batch alone."""
        self.shards.rows, self.shards.count = share.rows, max(1, len(share.shards))
        moves = nullcontext() if self.buffers is None else self.buffers.piece(share.rows, share.last_in_step)
        with self._synchronised(share.last_in_step), moves:
            yield self._losses.append

    def finish(self) -> Tensor:
        """The sum over this rank's micro-batches."""
        if isinstance(self.model, DistributedDataParallel):
            check_reduced(self.model)
        losses, self._losses = self._losses, []
        seed_streams(self.seed, "step", self._step, "optimizer")  # some draw, and must draw alike on all ranks
        return torch.stack(losses).sum()

    def combine_buffers(self) -> None:
        """Average running statistics, weighted by rows."""
        combine_buffers(self.model, self.weight)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


def check_reduced(model: DistributedDataParallel) -> None:
    """Refuse to go on where gradients were not reduced.

    DistributedDataParallel then still waits for those of parameters that the losses of this rank do not depend on.

    Raises:
        SettingsError: naming the parameters.
    """
    try:
        model.reducer._check_reducer_finalized()  # noqa: SLF001 - it would raise this in the next forward
    except RuntimeError as error:
        names = [name for name, p in model.module.named_parameters() if p.requires_grad]
        names = [name for name in names if name not in model.parameters_to_ignore]
        found = re.search(r"did not receive grad for rank \d+: (\d+(?: \d+)*)$", str(error), re.MULTILINE)
        unused = [names[int(number)] for number in found[1].split()] if found else ["some of its parameters"]
        remedy = (
            "let the loss depend on all that forward returns"
            if model.find_unused_parameters
            else "set +ddp.find_unused_parameters=true, use them, or set their requires_grad=False"
        )
        raise SettingsError(
            f"model: the loss does not depend on {few(unused)}, whose gradients DistributedDataParallel waits for; "
            f"{remedy}"
        ) from error
