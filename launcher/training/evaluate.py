"""Evaluation: each row counts exactly once, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.seeds import seed_streams
from launcher.training.compute import Compute
from launcher.training.task import Task
from samplers.words import counted

Metric = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Evaluator:
    """What an evaluation needs.

    Attributes:
        task: rows to losses and predictions.
        metrics: name -> (prediction, target) -> one value per row. A metric with a method
            ``result(sums, rows) -> float`` may give a tensor per row and turn its sum over all rows into a number.
        compute: device and number format.
        rows: that all ranks together must have seen; None: not known.
        place: of this rank's k-th batch in the order in which the sums of batches are added; batches of one place are
            added up first.
        seed: of random streams for each place, where batches of it are the same on any number of ranks; None: what is
            drawn is left to chance.
        gives_up: whether this rank has no time left for it.
    """

    task: Task
    metrics: Mapping[str, Metric]
    compute: Compute
    rows: int | None = None
    place: Callable[[int], int] = lambda _: 0
    seed: int | None = None
    gives_up: Callable[[], bool] = lambda: False

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        """Mean loss and metrics over the rows of all ranks; a collective. ``rows`` tells how many they were.

        Args:
            model: not wrapped, since ranks may have different numbers of batches.
            batches: this rank's rows.

        Raises:
            GivenUpError: on every rank, where one gave up.
        """
        sums: dict[int, Sums] = {}
        with evaluating(model):
            for number, batch in enumerate(batches):
                if self.gives_up():
                    break
                if self.seed is not None:
                    seed_streams(self.seed, "evaluation", self.place(number))
                self._add(sums.setdefault(self.place(number), Sums()), model, batch)
        total = over_all_ranks(sums, gives_up=self.gives_up())
        if self.rows is not None and total.rows != self.rows:
            raise ValueError(
                f"of {counted(self.rows, 'row')} {total.rows} were evaluated: collating must not leave rows out"
            )
        return self._results(total)

    def _add(self, sums: Sums, model: nn.Module, batch: Any) -> None:
        with self.compute.autocast():
            scores = self.task.score(model, self.compute.rows(batch))
        sums.add("loss", scores.losses)
        for name, metric in self.metrics.items():
            sums.add(name, metric(scores.prediction, scores.target))
        sums.rows += len(scores.losses)

    def _results(self, sums: Sums) -> dict[str, float]:
        results = {"loss": float(sums.values["loss"]) / sums.rows}
        for name, metric in self.metrics.items():
            result = getattr(metric, "result", None)
            value = sums.values[name]
            results[name] = float(result(value, sums.rows) if result else value / sums.rows)
        return {**results, "rows": sums.rows}


class GivenUpError(Exception):
    """An evaluation has no result, as a rank is asked to stop."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of the block; afterwards each layer is back in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass
class Sums:
    """Sums over rows by name, in float64."""

    values: dict[str, Tensor] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, per_row: Tensor) -> None:
        """Add the values of some rows: (rows, ...)."""
        total = per_row.double().sum(0)
        self.values[name] = self.values[name] + total if name in self.values else total


def over_all_ranks(sums: Mapping[int, Sums], gives_up: bool = False) -> Sums:
    """The sums of all ranks, added in the order of their places, then of the ranks; a rank without rows has no say.

    Raises:
        GivenUpError: on every rank, where one ``gives_up``.
    """
    mine = [(place, {n: value.cpu() for n, value in s.values.items()}, s.rows) for place, s in sums.items()]
    everyone = [(mine, gives_up)]
    if dist.is_initialized():
        everyone = everyone * dist.get_world_size()
        dist.all_gather_object(everyone, (mine, gives_up))
    if any(gave_up for _, gave_up in everyone):
        raise GivenUpError
    parts = sorted((part for theirs, _ in everyone for part in theirs), key=lambda part: part[0])
    names = dict.fromkeys(name for _, values, _ in parts for name in values)
    total = {n: torch.stack([values[n] for _, values, _ in parts if n in values]).sum(0) for n in names}
    return Sums(total, sum(rows for _, _, rows in parts))
