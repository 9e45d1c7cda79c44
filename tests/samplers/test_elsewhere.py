"""The sampler inside other people's loops: plain DDP, Lightning, Accelerate, Ignite and torchdata, on two ranks."""

import contextlib
import logging
import os
import warnings

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from launcher.testing import simulate
from samplers import FixedGlobalBatchSampler

ROWS, SIZE = 47, 8


def dataset():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.arange(ROWS), torch.randn(ROWS, 3, generator=generator, dtype=torch.float64))


def sampler_of(data, **settings):
    return FixedGlobalBatchSampler(data, SIZE, min_per_device=1, seed=1, **settings)


def expected(epochs=2, **settings):
    """Rows of each step of each epoch, in one process."""
    sampler = FixedGlobalBatchSampler(ROWS, SIZE, 0, 1, min_per_device=1, seed=1, **settings)
    return [[sorted(rows) for rows in sampler] for _ in range(epochs)]


def together(ranks):
    """Rows of each step over both ranks, from each rank's [epochs][steps][rows]."""
    return [
        [sorted(one + other) for one, other in zip(first, second, strict=True)]
        for first, second in zip(*ranks, strict=True)
    ]


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1, dtype=torch.float64)


def gradients_in_one_process(n, size):
    """The gradient of the mean loss over the real rows of each step of an epoch, with a padded tail."""
    data, net = dataset(), model()
    steps = list(FixedGlobalBatchSampler(n, size, 0, 1, min_per_device=1, seed=1, tail="pad"))
    steps[-1] = steps[-1][: n % size or size]
    losses = (net(data[rows][1]).square().mean() for rows in steps)
    return [torch.autograd.grad(loss, net.weight)[0] for loss in losses]


def train_with_ddp(n, size, most):
    """A hand-written loop: row losses, divided once by the rows of the global batch that count."""
    data, net = dataset(), DistributedDataParallel(model())
    sampler = FixedGlobalBatchSampler(n, size, seed=1, tail="pad", min_per_device=1, max_per_device=most)
    found, world_size = [], distributed.get_world_size()
    for place, (_, rows) in enumerate(DataLoader(data, batch_sampler=sampler)):
        share = sampler.share(place)
        counts = torch.arange(share.rows) < share.real_rows
        with contextlib.nullcontext() if share.last_in_step else net.no_sync():
            losses = net(rows).square().sum(dim=1)
            ((losses * counts).sum() * world_size / share.global_rows).backward()
        if share.last_in_step:
            found.append(net.module.weight.grad.clone())
            net.zero_grad()
    return found


@pytest.mark.parametrize(
    ("world_size", "n", "size", "most"),
    [
        (4, 40, 10, None),  # shares 3, 3, 2, 2
        (4, 41, 10, None),  # one real row in the last step
        (2, 47, 8, 2),  # two micro-batches of two rows
        (3, 47, 20, 2),  # four micro-batches, uneven
    ],
)
def test_plain_ddp_has_the_gradient_of_one_process(world_size, n, size, most):
    wanted = gradients_in_one_process(n, size)
    for found in simulate(world_size, train_with_ddp, n, size, most):
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


def train_with_lightning(**options):
    """Rows of each step and epoch on this rank, and the epochs that Lightning told the sampler."""
    warnings.simplefilter("ignore")
    logging.disable()
    import lightning  # noqa: PLC0415

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.seen = []

        def training_step(self, batch, place):
            if place == 0:
                self.seen.append([])
            self.seen[-1].append(batch[0].tolist())
            return self.net(batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self):
            # Here the process group exists, so the sampler finds its rank.
            data = dataset()
            sampler = sampler_of(data)
            original = sampler.set_epoch
            sampler.set_epoch = lambda epoch: (told.append(epoch), original(epoch))
            return DataLoader(data, batch_sampler=sampler)

    told = []
    task = Task()
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "devices": 2, "strategy": "ddp", **options}
    lightning.Trainer(max_epochs=2, **settings).fit(task)
    return task.seen, told


def test_lightning_moves_the_epochs():
    pytest.importorskip("lightning")
    ranks = simulate(2, lambda: train_with_lightning(use_distributed_sampler=False), process_group=False)
    assert together([seen for seen, _ in ranks]) == expected()
    assert all(told == [0, 1] for _, told in ranks)


def test_lightning_is_stopped_where_it_would_deal_again():
    pytest.importorskip("lightning")
    with pytest.raises(ValueError, match=r"already deals to world_size=2 ranks, .* set use_distributed_sampler=False"):
        simulate(2, train_with_lightning, process_group=False)


def accelerator():
    """Accelerate's own state, as its launcher would make it."""
    import accelerate  # noqa: PLC0415

    os.environ["ACCELERATE_USE_CPU"] = "true"
    return accelerate.Accelerator(cpu=True)


def test_accelerate_does_not_deal_again():
    pytest.importorskip("accelerate")

    def both():
        warnings.simplefilter("ignore")
        helper = accelerator()
        data = dataset()
        sampler = sampler_of(data)
        net = model()
        net, optimizer = helper.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        seen = []
        for _ in range(2):
            seen.append([])
            for index, rows in DataLoader(data, batch_sampler=sampler):
                helper.backward(net(rows.to(helper.device)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                seen[-1].append(index.tolist())
        return helper.num_processes, seen

    ranks = simulate(2, both)
    assert [processes for processes, _ in ranks] == [2, 2]
    assert together([seen for _, seen in ranks]) == expected()


def test_accelerate_is_stopped_where_it_would_deal_again():
    pytest.importorskip("accelerate")

    def both():
        warnings.simplefilter("ignore")
        data = dataset()
        accelerator().prepare(DataLoader(data, batch_sampler=sampler_of(data)))

    with pytest.raises(ValueError, match="already deals to world_size=2 ranks"):
        simulate(2, both)


def test_ignite_goes_through_whole_epochs():
    pytest.importorskip("ignite")

    def both():
        warnings.simplefilter("ignore")
        from ignite.engine import Engine, Events  # noqa: PLC0415

        data, seen = dataset(), []
        engine = Engine(lambda _, batch: seen[-1].append(batch[0].tolist()))
        engine.add_event_handler(Events.EPOCH_STARTED, lambda _: seen.append([]))
        engine.run(DataLoader(data, batch_sampler=sampler_of(data)), max_epochs=2)
        return seen

    assert together(simulate(2, both)) == expected()


@pytest.mark.parametrize(("workers", "stop"), [(0, 0), (0, 2), (0, 5), (1, 2)])
def test_torchdata_saves_and_loads_the_state(workers, stop):
    pytest.importorskip("torchdata")

    def both():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

        def loader():
            data = dataset()
            return StatefulDataLoader(data, batch_sampler=sampler_of(data), num_workers=workers)

        before = loader()
        batches = iter(before)
        seen = [next(batches)[0].tolist() for _ in range(stop)]
        state = before.state_dict()
        list(batches)  # workers that are left in the middle take seconds to end
        after = loader()
        after.load_state_dict(state)
        rest = [index.tolist() for index, _ in after]
        return [seen + rest, [index.tolist() for index, _ in after]]

    found = together(simulate(2, both))
    if stop == ROWS // SIZE:
        # The whole epoch was seen: what is loaded is the next one.
        assert found[0] == [step for epoch in expected() for step in epoch]
    else:
        assert found == expected()
