"""In exact mode a state that nobody else knows of is found before training, and nothing is moved by the look."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from launcher.processes.errors import SettingsError
from launcher.training.compute import Compute
from launcher.training.repeats import check_repeats
from launcher.training.task import Supervised
from tests.launcher.keeping import Following, OwnDropout, Paced, Warming
from tests.launcher.parts import MomentumByData, rows


class Growing(nn.CrossEntropyLoss):
    count = 0

    def forward(self, prediction, target):
        self.count += 1
        return super().forward(prediction, target) * self.count


def model_with(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))


LOSS = nn.CrossEntropyLoss(reduction="none")


def look(model, task=None, dataset=None):
    compute = Compute.of("fp32", torch.device("cpu"))
    check_repeats(dataset or rows(26), model, task or Supervised(LOSS), compute, seed=0)


FOUND = {
    "a generator": (model_with(OwnDropout()), "the output of layer 1 (OwnDropout) is another when "),
    "a count": (model_with(Warming()), "the output of layer 1 (Warming) is another when "),
    "statistics": (model_with(Paced(8)), "buffer 1.running_mean is another when "),
}


@pytest.mark.parametrize(("model", "message"), FOUND.values(), ids=FOUND)
def test_a_state_is_found_and_named(model, message):
    with pytest.raises(SettingsError) as error:
        look(model)
    assert str(error.value).startswith(f"batch.exact=true: {message}")


def test_a_state_of_the_loss_is_found():
    with pytest.raises(SettingsError, match=r"^batch.exact=true: the loss is another when "):
        look(nn.Linear(4, 3), Supervised(Growing(reduction="none")))


class Uncopied(Warming):
    def __deepcopy__(self, memo):
        raise TypeError("there is one of it")


LEFT_ALONE = {
    "dropout": model_with(nn.Dropout(0.5)),
    "statistics": model_with(nn.BatchNorm1d(8)),
    "weights that move": MomentumByData(),
    "no copy": model_with(Uncopied()),
}


@pytest.mark.parametrize("model", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_seeded_or_put_back_is_no_state_and_what_cannot_be_looked_at_is_left_alone(model):
    look(model, Following(LOSS, nn.Linear(4, 3)))


def test_a_look_moves_nothing():
    model, alone = model_with(OwnDropout()), model_with(nn.BatchNorm1d(8))
    state, stream = deepcopy(alone.state_dict()), model[1].stream.get_state()
    with pytest.raises(SettingsError):
        look(model)
    look(alone)
    assert torch.equal(model[1].stream.get_state(), stream)
    assert all(torch.equal(value, state[name]) for name, value in alone.state_dict().items())
    assert not [hook for layer in (*model.modules(), *alone.modules()) for hook in layer._forward_hooks]


def test_rows_with_which_a_model_does_not_work_are_left_to_training():
    look(model_with(nn.BatchNorm1d(8)), dataset=rows(1))
