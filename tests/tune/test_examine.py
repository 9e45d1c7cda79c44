"""Gradients and BatchNorm layers of a run's own model on its own rows."""

import pytest
import torch

from launcher.tune.examine import examined
from tests.tune.made import run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However slow the machine is, gradients are taken of all micro-batches."""
    monkeypatch.setattr("launcher.tune.examine.PATIENCE_S", float("inf"))


def test_the_noise_scale_and_the_smallest_map_of_the_digits():
    found = examined(run(), CPU, rows=600, available_bytes=2**30)
    assert (found.noise_scale.micro_rows, found.noise_scale.micro_batches) == (179, 8)
    assert found.noise_scale.low < found.noise_scale.rows < found.noise_scale.high
    name, values = found.smallest_map
    assert name.startswith("features.")
    assert values == 64
    assert found.momentum == 0.1


def test_it_does_not_depend_on_the_micro_batch():
    """Without BatchNorm, the noise scale is the same from pieces of any size."""
    bands = [examined(run(batchnorm=False), CPU, rows, 2**30).noise_scale for rows in (16, 100)]
    low, high = max(band.low for band in bands), min(band.high for band in bands)
    assert low < high
    assert bands[0].micro_batches == 32


@pytest.mark.parametrize("available_bytes", [0, 10_000])
def test_what_has_no_room_is_not_known(available_bytes):
    found = examined(run(batchnorm=False), CPU, 64, available_bytes)
    assert found.noise_scale.why_not == "memory or rows are too few"
    assert found.smallest_map is None
    assert found.momentum is None
