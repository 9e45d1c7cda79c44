"""Data and models of a user's own, as small as they can be."""

import logging
import math
import os
import random
import resource
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import Dataset

from launcher.data.memory import InMemory


def rows(n, features=4, classes=3, seed=0):
    """Random inputs (n, features) float32, whose classes a linear model can learn."""
    stream = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, features, generator=stream)
    return InMemory(inputs, (inputs @ torch.randn(features, classes, generator=stream)).argmax(1))


def normalised(features=4, classes=3):
    """A model with BatchNorm."""
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


class FailsOnRankOne(nn.Linear):
    """Ends training on rank 1 while the others wait for its gradient."""

    def forward(self, inputs):
        if self.training and os.environ["RANK"] == "1":
            raise ValueError("rank 1 has had enough")
        return super().forward(inputs)


class PartlyUnused(nn.Linear):
    """Has a layer that its output does not depend on."""

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.idle = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


class FailsInTurn(nn.Linear):
    """Rank 1 fails at once; rank 0 fails in another way when rank 1 is known to have failed."""

    def forward(self, inputs):
        if self.training and os.environ["RANK"] == "1":
            raise ValueError("the cause")
        while self.training and '"failed"' not in Path("run/status.json").read_text():
            os.sched_yield()
        if self.training:
            raise KeyError("a consequence")
        return super().forward(inputs)


class Noted(nn.Linear):
    """Logs a word when it is built."""

    def __init__(self, stamp, in_features=4, out_features=3):
        super().__init__(in_features, out_features)
        logging.getLogger("parts").info("stamp %s in %s", stamp, Path.cwd())
        logging.getLogger("parts").info("threads %d", torch.get_num_threads())


def mean_loss(prediction, target):
    """One value for all rows."""
    return nn.functional.cross_entropy(prediction, target)


def infinite_loss(prediction, target):
    """Infinite in training, with the gradient of another loss."""
    losses = nn.functional.cross_entropy(prediction, target, reduction="none")
    return losses + math.inf if prediction.requires_grad else losses


class DiesOnRankOne(nn.Linear):
    """Ends rank 1 without a word while the others wait for its gradient."""

    def forward(self, inputs):
        if self.training and os.environ["RANK"] == "1":
            os._exit(9)
        return super().forward(inputs)


def numbered(n, features=4, classes=3):
    """As ``rows``, where the first input is the number of the row."""
    data = rows(n, features, classes)
    data.tensors[0][:, 0] = torch.arange(n)
    return data


class Ledger(nn.Sequential):
    """A model with BatchNorm that writes down the numbers of the rows it is trained on, a line for each micro-batch."""

    def __init__(self, features=4, classes=3):
        super().__init__(nn.BatchNorm1d(features), nn.Dropout(0.2), nn.Linear(features, classes))

    def forward(self, inputs):
        if self.training and torch.is_grad_enabled():
            with Path(f"ledger_{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(" ".join(str(int(number)) for number in inputs[:, 0]) + "\n")
            self.meet_an_end()
        return super().forward(inputs)

    def meet_an_end(self):
        """Nothing happens to this one."""


class Averages(Ledger):
    """It is evaluated with an average of its outputs, whose weight follows a counter that is no tensor."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)
        self.register_buffer("average", torch.zeros(classes))
        self.steps = 0

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if not self.training:
            return outputs + self.average
        self.steps += 1
        self.average.lerp_(outputs.detach().mean(0), 1 / self.steps)
        return outputs

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


class Killed(Ledger):
    """Its rank 1 is killed in the fifth step."""

    def meet_an_end(self):
        if os.environ["RANK"] == "1" and len(Path("ledger_1").read_text().splitlines()) == 5:
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(Ledger):
    """It takes its time for a step."""

    def meet_an_end(self):
        time.sleep(0.15)


class FailsOnce(Ledger):
    """It fails in the fifth step, unless it is started again."""

    def meet_an_end(self):
        lines = Path(f"ledger_{os.environ['RANK']}").read_text().splitlines()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and len(lines) == 5:
            raise ValueError("the first time")


def as_a_file_says(classes=3):
    """Rows, as many as a file says: a dataset that grows behind the back of its settings."""
    return numbered(int(Path("rows").read_text()), classes=classes)


class AsAFileSays(nn.Linear):
    """A model with as many features as a file says: code that changes behind the back of its settings."""

    def __init__(self, classes=3):
        super().__init__(4, classes, bias=Path("bias").exists())


class Crowded(nn.Linear):
    """During the steps that a variable names its process can write to no file, as where the disk is full."""

    def __init__(self):
        super().__init__(4, 3)
        self.steps = 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            room = 0 if str(self.steps) in os.environ["CROWDED"] else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        return super().forward(inputs)


class Unkeepable(torch.optim.lr_scheduler.ConstantLR):
    """Its state holds an object."""

    def state_dict(self):
        return {**super().state_dict(), "seen": [object()]}


class Augmented(Dataset):
    """Rows, read one by one, each with noise from the streams of python, numpy and torch."""

    def __init__(self, n):
        self.rows = rows(n)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        inputs, target = self.rows[index]
        noise = random.gauss(0, 0.3) + np.random.normal(0, 0.3)  # noqa: NPY002 - what augmentation draws from
        return inputs * (1 + noise) + 0.3 * torch.randn(4), target


class AugmentedAtOnce(InMemory):
    """A dataset that reads whole batches, with noise."""

    def __init__(self, n):
        super().__init__(*rows(n).tensors)

    def __getitems__(self, indices):
        inputs, target = super().__getitems__(indices)
        return inputs + torch.randn_like(inputs), target


def regularised(features=4, classes=3, dropout=0.3):
    """A model with BatchNorm and dropout."""
    head = nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, classes))
    return nn.Sequential(nn.Linear(features, 16), nn.BatchNorm1d(16), *head)


class Overflows(nn.Linear):
    """Row number 7 has a gradient that float16 cannot hold once it is scaled, and no effect on the loss."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)
        self.steep = nn.Linear(1, classes)

    def forward(self, inputs):
        steep = self.steep((inputs[:, :1] == 7) * 1e4)
        return super().forward(inputs / 100) + steep - steep.detach()


class OwnForward(nn.BatchNorm1d):
    """BatchNorm that does something else besides."""

    def forward(self, inputs):
        return super().forward(inputs) * 2


def own_forward(features=4, classes=3):
    """A model with such a layer."""
    return nn.Sequential(OwnForward(features), nn.Linear(features, classes))


def synchronised(features=4, classes=3):
    """A model with a layer that looks at the rows of all ranks; in evaluation mode it needs no group."""
    return nn.Sequential(nn.Linear(features, classes), nn.SyncBatchNorm(classes))


class OfWords(nn.Module):
    """A model whose table has sparse gradients."""

    def __init__(self, features=4, classes=3):
        super().__init__()
        self.words, self.head = nn.Embedding(features, 5, sparse=True), nn.Linear(5, classes)

    def forward(self, inputs):
        return self.head(self.words(inputs.argmax(1)))


class Undetermined(nn.Linear):
    """In training, an operation of which torch has no deterministic form."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)

    def forward(self, inputs):
        if self.training:
            inputs = inputs.clone().put_(torch.tensor([0]), torch.tensor([1.0]))
        return super().forward(inputs)


class Signalled(Ledger):
    """One of its ranks, or all, gets signals in a certain step of the run; once, not again when it is continued."""

    def __init__(self, numbers="SIGTERM", rank=None, step=3, workers_too=False):
        super().__init__()
        self.numbers, self.rank, self.step, self.workers_too = numbers.split("+"), rank, step, workers_too
        self.steps = 0

    def meet_an_end(self):
        me = os.environ.get("RANK", "0")
        self.steps += 1
        if self.steps == self.step and self.rank in (None, int(me)) and not Path(f"signalled_{me}").exists():
            Path(f"signalled_{me}").touch()
            self.signal()

    def signal(self):
        for number in self.numbers:
            for worker in psutil.Process().children() if self.workers_too else ():
                worker.send_signal(getattr(signal, number))
            os.kill(os.getpid(), getattr(signal, number))


class AwaitsSignal(Signalled):
    """Its ranks wait in a certain step until somebody asks for the end; once, not again when it is continued."""

    def signal(self):
        signals = signal.getsignal(signal.SIGUSR1).__self__
        while signals.wish is None:
            time.sleep(0.01)


class SignalledInEvaluation(Signalled):
    """Its rank 1 gets a signal in an evaluation, once."""

    def forward(self, inputs):
        looks = not Path("ledger_0").exists()  # whether rows fit, before training
        if not (self.training or looks or Path("signalled").exists()) and os.environ["RANK"] == "1":
            Path("signalled").touch()
            self.signal()
        return super().forward(inputs)

    def meet_an_end(self):
        """In training it gets none."""


class SignalledWhenBuilt(nn.Linear):
    """Its rank 1 gets a signal before there is anything to keep."""

    def __init__(self):
        super().__init__(4, 3)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)


def obey_nothing(*numbers):
    """Get signals as one who waits inside a library for ever."""
    for number in numbers:
        signal.signal(number, lambda *_: None)
    for number in numbers:
        os.kill(os.getpid(), number)
    while True:
        signal.pause()


class Deaf(Signalled):
    """It gets signals in training, which it does not obey."""

    def signal(self):
        obey_nothing(*(getattr(signal, number) for number in self.numbers))


class DeafWhenBuilt(nn.Linear):
    """It gets a signal before there is anything to keep, which it does not obey."""

    def __init__(self):
        super().__init__(4, 3)
        obey_nothing(signal.SIGTERM)


class Explodes(nn.Linear):
    """Gives no number in the steps that are named, on one rank or on all."""

    def __init__(self, steps, rank=None):
        super().__init__(4, 3)
        self.explodes, self.rank, self.step = set(steps), rank, 0

    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        self.step += 1
        bad = self.step in self.explodes and self.rank in (None, int(os.environ["RANK"]))
        return super().forward(inputs) * (float("nan") if bad else 1.0)


class MixedUp(Dataset):
    """Draws where rows are put together."""

    def __init__(self, n=24, seed=0):
        self.rows = rows(n, seed=seed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    @staticmethod
    def collate_fn(batch):
        inputs, targets = zip(*batch, strict=True)
        return torch.stack(inputs) * torch.rand(1), torch.stack(targets)


class OwnGenerator(MixedUp):
    """Draws from a stream that nobody else knows of."""

    collate_fn = None

    def __init__(self, n=24, seed=0):
        super().__init__(n, seed)
        self.stream = np.random.default_rng(0)

    def __getitem__(self, index):
        inputs, target = self.rows[index]
        return inputs * float(self.stream.random()), target


class Limited(nn.Module):
    """A model whose table is cut to size in every forward."""

    def __init__(self, features=4, classes=3):
        super().__init__()
        self.words = nn.Embedding(features, classes, max_norm=0.5)

    def forward(self, inputs):
        return self.words(inputs.argmax(1))


class Lerped(nn.Module):
    """A frozen teacher that follows its student in every forward."""

    def __init__(self, features=4, classes=3):
        super().__init__()
        self.student, self.teacher = nn.Linear(features, classes), nn.Linear(features, classes).requires_grad_(False)

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.student(inputs) + self.teacher(inputs)


class Expanded(nn.Linear):
    """A buffer that is one number, seen as many."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)
        self.register_buffer("scale", torch.ones(1).expand(classes))


class HangsOnRankOne(Ledger):
    """Rank 1 never comes back from its fifth step."""

    def meet_an_end(self):
        while os.environ["RANK"] == "1" and len(Path("ledger_1").read_text().splitlines()) == 5:
            time.sleep(0.1)


class FailsAlways(Ledger):
    """It fails in a certain step, however often it is started."""

    def __init__(self, step=1):
        super().__init__()
        self.step, self.steps = step, 0

    def meet_an_end(self):
        self.steps += 1
        if self.steps == self.step:
            raise ValueError("once more")


def poisoned(n=24, seed=0):
    """Rows of which one is not a number."""
    inputs, targets = rows(n, seed=seed).tensors
    inputs[5] = float("nan")
    return InMemory(inputs, targets)


class Filled(nn.Linear):
    """A buffer that is there from the first step on."""

    def __init__(self, features=4, classes=3):
        super().__init__(features, classes)
        self.register_buffer("mean", None)

    def forward(self, inputs):
        if self.training:
            self.mean = inputs.detach().mean(0)
        return super().forward(inputs)


class MomentumByData(Lerped):
    """The same as MoCo writes it."""

    def forward(self, inputs):
        if self.training:
            self.teacher.weight.data = self.teacher.weight.data * 0.9 + self.student.weight.data * 0.1
        return self.student(inputs) + self.teacher(inputs)


class Fated(nn.Linear):
    """Ends as it is told, on the last rank, in the first step of training: raises, exits, segfaults or sleeps."""

    def __init__(self, in_features=4, out_features=3, fate="none"):
        super().__init__(in_features, out_features)
        self.fate = fate

    def forward(self, inputs):
        if self.training and int(os.environ.get("RANK", "0")) + 1 == int(os.environ.get("WORLD_SIZE", "1")):
            self.meet_it()
        return super().forward(inputs)

    def meet_it(self):
        if self.fate == "raises":
            raise ValueError("it was meant to")
        if self.fate == "exits":
            os._exit(7)
        if self.fate == "segfaults":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fate == "sleeps":
            time.sleep(600)


class Takes(torch.autograd.Function):
    """Passes values on, and takes memory for each row: for as long as the graph lives, or for a moment in backward."""

    @staticmethod
    def forward(ctx, values, mib, where):
        ctx.mib, ctx.where = mib, where
        ctx.save_for_backward(taken(values, mib) if where == "forward" else None)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.where == "backward":
            taken(gradient, ctx.mib)
        return gradient, None, None


def taken(rows, mib):
    """Memory for some rows, which nobody writes to."""
    return torch.empty(len(rows) * mib * 2**18)


class Hungry(nn.Linear):
    """Takes so many MiB for each row, in ``forward`` or ``backward``."""

    def __init__(self, mib=16, where="forward"):
        super().__init__(4, 3)
        self.mib, self.where = mib, where

    def forward(self, inputs):
        return Takes.apply(super().forward(inputs), self.mib, self.where)


class Refuses(nn.Linear):
    """Fails in training at so many rows, in one of several ways."""

    def __init__(self, how, rows):
        super().__init__(4, 3)
        self.how, self.rows = how, rows

    def forward(self, inputs):
        if self.training and len(inputs) >= self.rows:
            if self.how == "hangs":
                while True:
                    signal.pause()
            if self.how == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError(f"{len(inputs)} rows are too many for my taste")
        return super().forward(inputs)


def leave(mib):
    """Let this process and those that it starts find so much more memory; None: what the machine has."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard if mib is None else psutil.Process().memory_info().vms + mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
