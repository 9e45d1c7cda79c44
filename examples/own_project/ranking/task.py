"""How a batch of pairs becomes one loss per pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from launcher.training.task import Scores


class Pairwise:
    """The loss of RankNet (Burges et al., 2005): -log sigmoid(sharpness * (score of better - score of worse)).

    Args:
        sharpness: how large a difference of scores counts as certain.
    """

    def __init__(self, sharpness: float = 1.0) -> None:
        self.sharpness = sharpness

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """One loss per pair, (rows,)."""
        return self.score(model, batch).losses

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """The same, with what the metrics compare: differences of scores and true gaps, (rows,) each."""
        # One call for both sides: DistributedDataParallel wants one forward per backward.
        better, worse = model(torch.cat([batch["better"], batch["worse"]])).chunk(2)
        difference = better - worse
        return Scores(softplus(-self.sharpness * difference), difference, batch["gap"])
