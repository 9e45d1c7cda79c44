"""How far a run is, and what it has seen since it last told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.observe.observer import Done
from launcher.training.best import Best
from launcher.training.patience import Wait
from launcher.training.step import Stepped
from samplers import FixedGlobalBatchSampler


@dataclass
class Window:
    """The training loss since the last line of metrics; it stays on the device until somebody asks."""

    losses: list[Tensor] = field(default_factory=list)
    rows: int = 0

    def add(self, loss: Tensor, rows: int) -> None:
        """Note a step: this rank's sum of losses, and the rows of the global batch."""
        self.losses.append(loss)
        self.rows += rows

    def close(self) -> float:
        """The mean loss over the rows of all ranks, and a new beginning; a collective."""
        total = torch.stack(self.losses).sum()
        if dist.is_initialized():
            dist.all_reduce(total)
        mean = float(total) / self.rows
        self.losses, self.rows = [], 0
        return mean

    def of_all_ranks(self) -> Tensor:
        """The sums of losses, (ranks, steps) on the CPU; a collective."""
        if not self.losses:
            return torch.zeros(1, 0)
        mine = torch.stack(self.losses)
        everyone = [mine]
        if dist.is_initialized():
            everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, mine)
        return torch.stack(everyone).cpu()

    @classmethod
    def restored(cls, losses: Tensor, rows: int, device: torch.device) -> Window:
        """This rank's part of what ``of_all_ranks`` gave, so that the next line is the one that was due.

        As many ranks take up what each of them had, to the bit; where they are more or fewer, the first has it all.
        """
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        nothing = torch.zeros_like(losses[0])
        shared = losses if ranks == len(losses) else [losses.sum(0)] + [nothing] * (ranks - 1)
        return cls(list(shared[rank].to(device)), rows)


def next_step_in_words(now: Progress, sampler: FixedGlobalBatchSampler) -> str:
    """The step that is being taken, with the dataset indices of its rows."""
    rows = sampler.global_batch(now.epoch_rows // sampler.plan.global_size)
    return f"step {now.done.step + 1} (epoch {now.epoch + 1}, rows {', '.join(map(str, rows))})"


@dataclass
class Progress:
    """Where a run stands between two steps.

    Attributes:
        done: what all steps together did.
        epoch: the epoch that the next step belongs to, counted from 0.
        epoch_rows: rows done of the epoch that the sampler is in, counted as it counts them.
        window: the loss since the last line of metrics.
        results: those of the evaluation after the last step; None where there was none.
        metrics: the last value of each, as it was when the run was kept.
        best: the best evaluation so far; None where nobody asks.
        wait: for a better evaluation; None where nobody waits.
    """

    done: Done = field(default_factory=Done)
    epoch: int = 0
    epoch_rows: int = 0
    window: Window = field(default_factory=Window)
    results: Mapping[str, float] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Best | None = None
    wait: Wait | None = None

    def add(self, step: Stepped, steps_left: int) -> None:
        """Note a step, and the steps left in its epoch."""
        if not step.left_out:
            self.window.add(step.loss, step.rows)
        self.done = Done(self.done.step + 1, self.epoch, self.done.rows + step.rows)
        self.epoch_rows += step.rows
        self.epoch += steps_left == 0
        self.results = None
