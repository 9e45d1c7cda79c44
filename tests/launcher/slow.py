"""Parts of a run that take a known time, by a real clock or by one that they move on."""

import time

from torch import nn
from torch.utils.data import Dataset

from launcher.checkpoints import store
from launcher.training.task import Supervised
from tests.launcher.parts import rows

DATA_S, LOSS_S, SAVE_S = 0.05, 0.1, 0.3


class Rows(Dataset):
    """The rows of ``parts.rows``, which take their time a batch at a time."""

    def __init__(self, n, wait=time.sleep):
        self.rows, self.wait = rows(n), wait

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def collate_fn(self, batch):
        self.wait(DATA_S)
        return self.rows.collate_fn(self.rows[batch])

    def __getitems__(self, indices):
        return indices


class Task(Supervised):
    """A task whose losses take their time."""

    def __init__(self, loss=None, wait=time.sleep):
        super().__init__(loss or nn.CrossEntropyLoss(reduction="none"))
        self.wait = wait

    def loss(self, model, batch):
        if model.training:
            self.wait(LOSS_S)
        return super().loss(model, batch)


def save_slowly():
    save = store.save

    def slow(*arguments):
        time.sleep(SAVE_S)
        return save(*arguments)

    store.save = slow


class FailsInStepThree(nn.Linear):
    """Trains two steps and no more."""

    steps = 0

    def forward(self, inputs):
        self.steps += self.training
        if self.steps == 3:
            raise ValueError("step three")
        return super().forward(inputs)
