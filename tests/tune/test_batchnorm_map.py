"""The smallest BatchNorm map."""

import math

import pytest
import torch
from torch import nn

from launcher.tune.batchnorm_map import SmallestMap, values_per_row

NET = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1),
    nn.BatchNorm2d(4),
    nn.MaxPool2d(4),
    nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8)),
    nn.Dropout(),
)


def test_the_layer_with_the_fewest_values_and_nothing_moved():
    before = {name: value.clone() for name, value in NET.state_dict().items()}
    rows = torch.rand(6, 1, 8, 8)
    assert values_per_row(NET, lambda: NET(rows), 6) == ("3.1", 4.0)
    assert all(torch.equal(before[name], value) for name, value in NET.state_dict().items())
    assert all(module.training for module in NET.modules())
    assert not any(module._forward_pre_hooks for module in NET.modules())


def test_frozen_layers_stay_so():
    model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Linear(2, 2))
    assert values_per_row(model, lambda: model(torch.rand(5, 2)), 5) == ("0", 1.0)
    assert [module.training for module in model] == [False, True]


def test_models_without_batchnorm():
    model = nn.Linear(2, 2)
    assert values_per_row(model, lambda: model(torch.rand(5, 2)), 5) is None


@pytest.mark.parametrize(
    ("per_row", "rows", "values", "error", "few"),
    [(16, 64, 1024, 0.044, False), (1, 32, 32, 0.254, False), (1, 31, 31, 0.258, True), (1, 1, 1, math.inf, True)],
)
def test_few_values_are_said(per_row, rows, values, error, few):
    found = SmallestMap("layer4.1.bn2", per_row, rows)
    assert (found.values, found.few) == (values, few)
    assert found.error == pytest.approx(error, abs=1e-3)
