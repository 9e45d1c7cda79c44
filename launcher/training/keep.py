"""What a rank does to keep a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from launcher.checkpoints import store
from launcher.checkpoints.generation import Facts, files_of
from launcher.checkpoints.identity import identity_of
from launcher.checkpoints.plain import plain
from launcher.checkpoints.state import weights_to_bytes
from launcher.configure.parts import scheduler_node
from launcher.configure.schema import RunConfig
from launcher.observe.observer import Observer
from launcher.training.compute import Compute
from launcher.training.progress import Progress
from launcher.training.step import Stepper
from samplers import FixedGlobalBatchSampler


@dataclass(frozen=True)
class Keeper:
    """Keeps checkpoints of a run.

    Attributes:
        run_dir: the run folder.
        generations: how many stay.
        model: not wrapped.
        stepper: has optimizer, scheduler and loss scaling.
        sampler: knows the position.
        observer: knows the metrics.
        about: the facts of the run that do not change while it goes.
        writes: whether this rank writes.
    """

    run_dir: Path
    generations: int
    model: nn.Module
    stepper: Stepper
    sampler: FixedGlobalBatchSampler
    observer: Observer
    about: Mapping[str, Any]
    writes: bool

    def keep(self, now: Progress) -> None:
        """Keep the run as it stands after a step; a collective."""
        self.stepper.reduction.combine_buffers()
        losses = now.window.of_all_ranks()
        if not self.writes:
            return
        self.observer.flush()
        training = {**training_state(self.stepper), "window": {"losses": losses, "rows": now.window.rows}}
        root = self.run_dir / store.FOLDER
        store.save(root, now.done.step, files_of(self._facts(now), weights_to_bytes(self.model), training))
        store.prune(root, now.done.step, self.generations)

    def _facts(self, now: Progress) -> Facts:
        return Facts(
            step=now.done.step,
            epoch=now.done.epoch,
            rows=now.done.rows,
            sampler=self.sampler.state_dict(now.epoch_rows),
            results=now.results,
            metrics=self.observer.metrics,
            **self.about,
        )


def facts_of(run: RunConfig, compute: Compute, threads: int, ranks: int, steps: int) -> dict[str, Any]:
    """The facts of a run that do not change while it goes.

    Args:
        run: its settings.
        compute: how each rank computes.
        threads: of each rank.
        ranks: that work.
        steps: of the whole run.
    """
    return {
        "world_size": ranks,
        "optimizer": run.optimizer,
        "scheduler": scheduler_node(run, steps),
        "identity": asdict(identity_of(run, compute.device, compute.channels_last, threads, ranks)),
        "settings": asdict(run),
    }


def training_state(stepper: Stepper) -> dict[str, Any]:
    """The state of optimizer, scheduler, loss scaling and the count of steps left out.

    Raises:
        SettingsError: where one of them holds something that a checkpoint cannot keep.
    """
    parts = {
        "optimizer": stepper.optimizer,
        "scheduler": stepper.scheduler,
        "scaler": stepper.compute.scaler,
        "finite": stepper.finite,
    }
    return {name: plain(name, part.state_dict()) for name, part in parts.items() if part is not None}
