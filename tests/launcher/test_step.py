"""Any split is the same gradient: that of the mean loss over the real rows of the global batch."""

from collections import namedtuple
from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from launcher.data.memory import InMemory
from launcher.testing import simulate
from launcher.training.compute import Compute, to_device
from launcher.training.reduction import Averaged
from launcher.training.step import Stepper, by_step, scale_gradients
from launcher.training.task import Supervised
from launcher.training.wrap import wrap
from samplers import FixedGlobalBatchSampler, Share

CPU = torch.device("cpu")
TASK = Supervised(nn.CrossEntropyLoss(reduction="none"))


def model_and_rows(n, dtype=torch.float64):
    """The same model and rows on every rank."""
    stream = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    inputs = torch.randn(n, 5, generator=stream, dtype=torch.float64).to(dtype) * 3
    return model, InMemory(inputs, torch.randint(3, (n,), generator=stream))


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def step_gradients(n, world_size, *, clip_norm=None, global_size=10, dtype=torch.float64, **batch):
    """On a rank: the gradient of each step of an epoch, all from the same weights, and the sums of losses."""
    model, rows = model_and_rows(n, dtype)
    rank = dist.get_rank() if dist.is_initialized() else 0
    settings = {"min_per_device": 1, **batch}
    sampler = FixedGlobalBatchSampler(n, global_size, rank, world_size, seed=3, **settings)
    loader = DataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate_fn)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    wrapped = wrap(model, False, {}, CPU)
    stepper = Stepper(
        model=wrapped,
        task=TASK,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        scheduler=None,
        compute=Compute.of("fp32", CPU),
        reduction=Averaged(wrapped, divides_by=world_size),
        clip_norm=clip_norm,
    )
    gradients, losses = [], []
    for micro_batches in by_step(loader, sampler):
        before = flat(model.parameters())
        losses.append(float(stepper.step(micro_batches)[0]))
        gradients.append(before - flat(model.parameters()))
        model.load_state_dict(start)
    return torch.stack(gradients), torch.tensor(losses, dtype=torch.float64)


def expected(n, positions_of_steps):
    """The same by autograd alone: one process, the real rows of each step at once."""
    model, rows = model_and_rows(n)
    order = FixedGlobalBatchSampler(n, 1, 0, 1, seed=3, min_per_device=1).order
    gradients, losses = [], []
    for positions in positions_of_steps:
        inputs, target = rows[torch.from_numpy(order.indices(0, np.array(positions)))]
        each = nn.functional.cross_entropy(model(inputs), target, reduction="none")
        gradients.append(flat(torch.autograd.grad(each.mean(), list(model.parameters()))))
        losses.append(float(each.detach().sum()))
    return torch.stack(gradients), torch.tensor(losses, dtype=torch.float64)


def relative_error(found, right):
    return float(((found - right).norm(dim=1) / right.norm(dim=1)).max())


ONE = [range(10)]
SPLITS = [
    # n, ranks, settings, positions of the rows that count in each step
    (10, 4, {}, ONE),
    (10, 4, {"max_per_device": 2}, ONE),
    (12, 4, {"global_size": 12, "max_per_device": 1}, [range(12)]),
    (10, 1, {"max_per_device": 3}, ONE),
    (10, 3, {}, ONE),
    (10, 3, {"max_per_device": 3}, ONE),
    (10, 5, {}, ONE),
    (10, 5, {"max_per_device": 1}, ONE),
    (8, 2, {"global_size": 8, "max_per_device": 2}, [range(8)]),
    (25, 4, {"tail": "drop"}, [range(10), range(10, 20)]),
    (11, 4, {"tail": "pad"}, [range(10), [10]]),
    (11, 4, {"tail": "pad", "max_per_device": 2}, [range(10), [10]]),
    (11, 4, {"tail": "pad", "pad_weight": 1}, [range(10), [10, *range(9)]]),
    (11, 4, {"tail": "pad", "pad_weight": 1, "max_per_device": 2}, [range(10), [10, *range(9)]]),
    (13, 3, {"tail": "pad"}, [range(10), range(10, 13)]),
    (13, 5, {"tail": "pad", "max_per_device": 1}, [range(10), range(10, 13)]),
]


@cache
def found_on(ranks):
    """What ``step_gradients`` gives for each of ``SPLITS`` with so many ranks, from one start: number -> by rank."""
    numbers = [number for number, split in enumerate(SPLITS) if split[1] == ranks]
    ended = simulate(ranks, lambda: [step_gradients(SPLITS[n][0], ranks, **SPLITS[n][2]) for n in numbers])
    return dict(zip(numbers, zip(*ended, strict=True), strict=True))


@pytest.mark.parametrize("number", range(len(SPLITS)), ids=[str(split[:3]) for split in SPLITS])
def test_the_gradient_is_that_of_the_mean_loss_over_the_real_rows(number):
    n, ranks, _, positions = SPLITS[number]
    right, right_losses = expected(n, positions)
    found = found_on(ranks)[number]
    for gradients, _ in found:
        assert gradients.shape == right.shape
        assert relative_error(gradients, right) < 1e-12
    torch.testing.assert_close(sum(losses for _, losses in found), right_losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_in_float32_uneven_shares_differ_from_one_process_by_less_than_a_millionth(ranks):
    (one, losses), right = step_gradients(10, 1, dtype=torch.float32), expected(10, ONE)[0]
    assert relative_error(one.double(), right) < 1e-6
    most = (None, 2)
    ended = simulate(ranks, lambda: [step_gradients(10, ranks, dtype=torch.float32, max_per_device=m) for m in most])
    for found in zip(*ended, strict=True):
        for gradients, _ in found:
            assert gradients.dtype == torch.float32
            assert relative_error(gradients, one) < 1e-6
        torch.testing.assert_close(sum(theirs for _, theirs in found), losses, rtol=1e-6, atol=0)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_whole_gradient_is_clipped_once(ranks):
    right, _ = expected(10, ONE)
    norm = float(right.norm())
    cases = [(clip, most) for clip in (norm / 7, norm * 7) for most in (None, 2)]
    ended = simulate(ranks, lambda: [step_gradients(10, ranks, clip_norm=c, max_per_device=m)[0] for c, m in cases])
    for (clip, _), *found in zip(cases, *ended, strict=True):
        scale = min(1.0, clip / (norm + 1e-6))
        assert all(relative_error(gradients, right * scale) < 1e-12 for gradients in found)


def test_gradients_travel_once_per_step_however_many_micro_batches():
    def count():
        n, ranks = 24, 2
        model, rows = model_and_rows(n)
        sampler = FixedGlobalBatchSampler(n, 12, dist.get_rank(), ranks, min_per_device=1, max_per_device=2)
        wrapped = wrap(model, False, {}, CPU)
        assert isinstance(wrapped, DistributedDataParallel)
        reduced = []

        def hook(_state, bucket):
            reduced.append(bucket.index())
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / ranks)

        wrapped.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stepper = Stepper(wrapped, TASK, optimizer, None, Compute.of("fp32", CPU), Averaged(wrapped, divides_by=ranks))
        for micro_batches in by_step(DataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate_fn), sampler):
            stepper.step(micro_batches)
        return len(sampler), reduced

    assert simulate(2, count) == [(6, [0, 0])] * 2


def test_micro_batches_are_grouped_by_step():
    sampler = FixedGlobalBatchSampler(20, 10, 0, 2, min_per_device=1, max_per_device=2)
    steps = [list(step) for step in by_step(["a", "b", "c", "d", "e", "f"], sampler)]
    assert [[batch for batch, _ in step] for step in steps] == [["a", "b", "c"], ["d", "e", "f"]]
    assert [share.last_in_step for _, share in steps[0]] == [False, False, True]


def test_micro_batches_are_read_when_they_are_needed():
    read = []
    batches = (read.append(letter) or letter for letter in "abcdef")
    sampler = FixedGlobalBatchSampler(20, 10, 0, 2, min_per_device=1, max_per_device=2)
    steps = by_step(batches, sampler)
    first = next(steps)
    assert (next(first)[0], read) == ("a", ["a"])
    assert [batch for batch, _ in first] == ["b", "c"]
    assert read == ["a", "b", "c"]  # what is read for the next step draws from its random streams, which begin later
    assert [batch for batch, _ in next(steps)] == ["d", "e", "f"]
    assert list(steps) == []


class SquaredError:
    """A task whose losses autocast leaves in 16 bits."""

    def loss(self, model, batch):
        outputs = model(batch[0])
        return (outputs - batch[1].to(outputs.dtype)).square().mean(1)


@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_rows_weigh_the_same_where_losses_have_16_bits(world_size):
    """world_size / 100 is no number of 16 bits; the gradient is that of one row all the same."""
    torch.manual_seed(0)
    model, row = nn.Linear(4, 2), (torch.rand(1, 4), torch.rand(1, 2))
    compute = Compute.of("bf16", CPU)
    with compute.autocast():
        losses = SquaredError().loss(model, row)
    assert losses.dtype is torch.bfloat16
    losses.float().sum().backward()
    of_one_row, before = model.weight.grad.clone(), model.weight.detach().clone()
    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    stepper = Stepper(model, SquaredError(), optimizer, None, compute, Averaged(model, divides_by=world_size))
    loss, *_ = stepper.step([(row, Share(step=0, rows=1, real_rows=1, global_rows=100, last_in_step=True))])
    assert loss.dtype is torch.float32
    taken = (before - model.weight.detach()) * 100 / world_size
    assert torch.allclose(taken, of_one_row, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_any_format_are_scaled_by_the_factor_itself(dtype):
    """16 / 22 is no number of 16 bits."""
    model = nn.Linear(100, 3).to(dtype)
    model.weight.grad = torch.randn(3, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
    right = (model.weight.grad.to(torch.promote_types(dtype, torch.float32)) * (16 / 22)).to(dtype)
    scale_gradients(model, 16 / 22)
    assert torch.equal(model.weight.grad, right)
    assert model.bias.grad is None


def test_a_batch_moves_in_the_structure_it_has():
    pair = namedtuple("Pair", "image label")  # noqa: PYI024 - what collating gives
    image = torch.zeros(2, 3, 4, 4)
    batch = {"a": [image, "text"], "b": pair(image, torch.ones(2)), "c": (image, 3)}
    moved = to_device(batch, CPU, channels_last=True)
    assert moved["a"][0].is_contiguous(memory_format=torch.channels_last)
    assert (moved["a"][1], moved["c"][1]) == ("text", 3)
    assert isinstance(moved["b"], pair)
    assert moved["b"].label.tolist() == [1, 1]
    assert isinstance(moved["c"], tuple)
