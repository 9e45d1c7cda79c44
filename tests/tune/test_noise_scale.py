"""The gradient noise scale, against models for which it is known."""

import pytest
import torch
from torch import nn

from launcher.tune.noise_scale import from_products, noise_scale, products, squared_gradient_and_variance

D, SIGMA, ROWS = 20, 0.5, 32


def regression(seed, offset, micro_batches=16):
    """Gradients of half the squared error of a linear model that is off by ``offset`` in each weight.

    With x from N(0, 1) in D dimensions and targets with noise of deviation SIGMA, the gradient of a row is
    x x'e - x s: its mean is e, its covariance has the trace (D + 1)|e|^2 + D SIGMA^2.
    """
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(D, 1, bias=False)
    nn.init.constant_(model.weight, offset)
    found = []
    for _ in range(micro_batches):
        x = torch.randn(ROWS, D, generator=generator)
        targets = SIGMA * torch.randn(ROWS, generator=generator)
        loss = (model(x)[:, 0] - targets).square().mean() / 2
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    return found


def known(offset):
    return D + 1 + D * SIGMA**2 / (D * offset**2)


@pytest.mark.parametrize("offset", [0.1, 0.3, 1.0])
def test_a_linear_model_has_the_noise_scale_that_is_known_of_it(offset):
    many = [noise_scale(regression(seed, offset), ROWS) for seed in range(40)]
    assert all(one.why_not is None for one in many)
    inside = sum(one.low <= known(offset) <= one.high for one in many)
    assert inside >= 35  # a band of two errors from 16 micro-batches holds 93 %
    mean = sum(1 / one.rows for one in many) / len(many)
    assert 1 / mean == pytest.approx(known(offset), rel=0.1)
    assert all(one.low < one.rows < one.high for one in many)


def test_a_gradient_below_its_noise_is_not_known():
    many = [noise_scale(regression(seed, 0.001, 8), ROWS) for seed in range(20)]
    assert sum(one.rows is None for one in many) >= 18
    one = next(one for one in many if one.low is not None and one.rows is None)
    assert one.high is None
    assert one.low < known(0.001)
    assert one.why_not.startswith("|G|^2 is not above its noise in 8 micro-batches of 32 rows: more than ")


def test_the_estimates_have_no_bias():
    """Of two micro-batches of one row the average over all pairs is exact."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    pairs = [rows[[i, j]] for i in range(3) for j in range(3)]  # drawn independently
    found = [squared_gradient_and_variance(p.square().sum(), p.sum(0).square().sum(), 2, 1) for p in pairs]
    mean = rows.mean(0)
    assert torch.stack([g for g, _ in found]).mean() == pytest.approx(mean.square().sum())
    assert torch.stack([v for _, v in found]).mean() == pytest.approx((rows - mean).square().sum() / 3)


def test_products_are_over_all_parameters():
    found = products([[torch.ones(2, 2), torch.ones(1)], [torch.ones(2, 2), torch.zeros(1)]])
    assert found.tolist() == [[5, 4], [4, 4]]


@pytest.mark.parametrize(
    ("between", "why_not"),
    [
        (torch.zeros(5, 5), "the gradients are zero, the same in all micro-batches, or not finite"),
        (torch.full((5, 5), float("nan")), "the gradients are zero, the same in all micro-batches, or not finite"),
    ],
)
def test_what_has_no_noise_scale(between, why_not):
    found = from_products(between, 8)
    assert (found.rows, found.low, found.high, found.why_not) == (None, None, None, why_not)


def test_few_micro_batches_tell_nothing():
    found = noise_scale([[torch.ones(1)]] * 3, 8)
    assert found.why_not == "3 micro-batches of 8 rows are too few, 4 are needed"
    assert (found.micro_batches, found.micro_rows) == (3, 8)
