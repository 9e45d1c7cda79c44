"""BatchNorm's running statistics: kept by each rank, combined by row count when they are read."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from launcher.checkpoints.load import load_weights
from launcher.testing import simulate
from launcher.training.buffers import combine_buffers, running_statistics
from tests.launcher.command import TINY, launch
from tests.launcher.parts import normalised

WEIGHTS = {1: [1.0], 3: [0.5, 0.25, 0.25], 5: [0.3, 0.3, 0.2, 0.1, 0.1]}


class Counted(nn.Module):
    """A model with a buffer that is no running statistic, and a BatchNorm without statistics."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.without = nn.BatchNorm1d(2, track_running_stats=False)
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_statistics_are_averaged_by_row_count_and_other_buffers_come_from_rank_zero(ranks):
    weights = WEIGHTS[ranks]

    def combine():
        rank, model = dist.get_rank(), Counted()
        model.norm.running_mean.fill_(rank + 1)
        model.norm.running_var.copy_(torch.tensor([10.0 * rank, 1.0]))
        model.norm.num_batches_tracked.fill_(rank + 7)
        model.count.fill_(rank + 5)
        combine_buffers(model, weights[rank])
        return model.norm.running_mean, model.norm.running_var, model.norm.num_batches_tracked, model.count

    mean = sum(weight * (rank + 1) for rank, weight in enumerate(weights))
    variance = sum(weight * 10 * rank for rank, weight in enumerate(weights))
    for found in simulate(ranks, combine):
        torch.testing.assert_close(found[0], torch.tensor([mean, mean]))
        torch.testing.assert_close(found[1], torch.tensor([variance, 1.0]))
        assert int(found[2]) == 7
        assert found[3].tolist() == [5, 5, 5]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_how_often_they_are_combined_does_not_change_them(momentum):
    def train(every):
        model = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum).double())
        for step in range(6):
            stream = torch.Generator().manual_seed(step * 10 + dist.get_rank())
            model(torch.randn(4, 3, generator=stream, dtype=torch.float64) * (step + 1))
            if (step + 1) % every == 0:
                combine_buffers(model, WEIGHTS[3][dist.get_rank()])
        return torch.stack(running_statistics(model))

    often, seldom, once = (simulate(3, train, every) for every in (1, 2, 6))
    for found in (*often, *seldom, *once):
        torch.testing.assert_close(found, once[0], rtol=1e-12, atol=0)


def test_without_a_group_nothing_happens():
    model = Counted()
    model.norm.running_mean.fill_(3)
    combine_buffers(model, 0.5)
    assert model.norm.running_mean.tolist() == [3, 3]


def test_evaluations_in_between_leave_the_run_as_it_is(tmp_path):
    models = []
    for every in (0, 1):
        done = launch(
            tmp_path / str(every), 3, *TINY, "model=normalised", "trainer.epochs=4", f"trainer.evaluate_every={every}"
        )
        assert done.status == 0, done.error
        models.append(normalised())
        load_weights(models[-1], str(done.run_dir))
    for (name, seldom), often in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(seldom, often, rtol=1e-5, atol=1e-6, msg=name)
    assert models[0][1].running_mean.abs().max() > 0


def test_the_model_that_is_evaluated_is_the_one_that_is_kept(tmp_path):
    done = launch(tmp_path / "first", 4, *TINY, "model=normalised", "batch.global_size=10")
    again = launch(tmp_path / "again", 1, *TINY, "model=normalised", "mode=evaluate", f"checkpoint.load={done.run_dir}")
    assert again.status == 0, again.error
    assert again.values("test/loss") == pytest.approx(done.values("test/loss")[-1:], rel=1e-6)
