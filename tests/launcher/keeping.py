"""Parts of a user's own that keep a state beside weights and optimizer."""

from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from launcher.checkpoints import store
from launcher.training.task import Supervised
from tests.launcher.parts import Ledger


class Following(Supervised):
    """It is evaluated with a moving average of the weights."""

    def __init__(self, loss, model, decay=0.5):
        super().__init__(loss)
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).eval()

    def after_step(self, model):
        assert type(model) is not nn.parallel.DistributedDataParallel
        self.average.update_parameters(model)

    def score(self, model, batch):
        return super().score(model if model.training else self.average, batch)

    def state_dict(self):
        return self.average.state_dict()

    def load_state_dict(self, state):
        self.average.load_state_dict(state)


class OneWay(Supervised):
    """It gives its state away."""

    def state_dict(self):
        return {}


class Unkeepable(Supervised):
    """An object is part of its state as soon as it has seen a step."""

    seen = None

    def after_step(self, model):
        self.seen = (layer for layer in model.modules())

    def state_dict(self):
        return {} if self.seen is None else {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Forgetful(Supervised):
    """It does not take back what it gave."""

    def state_dict(self):
        return {"steps": 1}

    def load_state_dict(self, state):
        self.steps = state["count"]


class AtRisk(Supervised):
    """After each step it notes how many steps a failure would cost now."""

    steps = 0

    def after_step(self, model):  # noqa: ARG002
        self.steps += 1
        kept = [store.step_of(folder) for folder in store.generations(Path("checkpoints"))]
        with Path("at_risk").open("a") as file:
            file.write(f"{self.steps - max(kept, default=0)}\n")


class Hardening(nn.CrossEntropyLoss):
    """Weighs each row with a number that grows with every batch of training."""

    def __init__(self, reduction, label_smoothing, rate=1.1):
        super().__init__(reduction=reduction, label_smoothing=label_smoothing)
        self.rate = rate
        self.register_buffer("hardness", torch.ones(()))

    def forward(self, prediction, target):
        if torch.is_grad_enabled():
            self.hardness *= self.rate
        return self.hardness * super().forward(prediction, target)


class Drifting(Ledger):
    """What it adds to its outputs is a buffer that its state dict leaves out, and another that is there once used."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)
        self.register_buffer("drift", torch.zeros(classes), persistent=False)
        self.register_buffer("latest", None, persistent=False)

    def forward(self, inputs):
        outputs = super().forward(inputs) + self.drift
        if self.training:
            self.drift += outputs.detach().mean(0)
            self.latest = outputs.detach()[:1]
        return outputs if self.latest is None else outputs + self.latest.mean()


class OwnDropout(nn.Module):
    """Draws from a stream that nobody else knows of."""

    def __init__(self):
        super().__init__()
        self.stream = torch.Generator().manual_seed(0)

    def forward(self, inputs):
        return inputs * torch.rand(inputs.shape, generator=self.stream)


class Warming(nn.Module):
    """Lets more through from one forward to the next, by a count that is no buffer."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, inputs):
        self.count += self.training
        return inputs * (1 - 0.5**self.count)


class Paced(nn.BatchNorm1d):
    """Its statistics move less and less; what it gives does not tell."""

    def forward(self, inputs):
        self.momentum /= 2
        return super().forward(inputs)


def drops_by_itself(features=4, classes=3):
    return nn.Sequential(nn.Linear(features, 8), OwnDropout(), nn.Linear(8, classes))
