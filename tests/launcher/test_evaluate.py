"""Evaluation: each row exactly once, on any number of ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from launcher.data.memory import InMemory
from launcher.testing import simulate
from launcher.training.compute import Compute
from launcher.training.evaluate import Evaluator, evaluating
from launcher.training.task import Supervised, TopK, absolute_error, accuracy
from samplers import ExactlyOnceSampler
from tests.launcher.command import TINY, launch

CPU = torch.device("cpu")


class RowsSeen:
    """How often each row was seen: a metric with a tensor per row, and a result of its own."""

    def __call__(self, _prediction, target):
        return nn.functional.one_hot(target, 10)

    def result(self, sums, rows):
        assert sums.sum() == rows
        return float(sums.max())


def evaluate(n, batch):
    """On a rank: n rows whose target is their own number."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    model = nn.Linear(4, 10)
    rows = InMemory(torch.randn(n, 4), torch.arange(n))
    loader = DataLoader(rows, batch_sampler=ExactlyOnceSampler(n, batch, rank, world_size), collate_fn=rows.collate_fn)
    metrics = {"accuracy": accuracy, "top5": TopK(5), "most": RowsSeen()}
    evaluator = Evaluator(Supervised(nn.CrossEntropyLoss(reduction="none")), metrics, Compute.of("fp32", CPU))
    return evaluator.evaluate(model, loader)


@pytest.mark.parametrize(("n", "ranks"), [(10, 1), (10, 2), (10, 3), (10, 4), (3, 7), (7, 2), (1, 2)])
@pytest.mark.parametrize("batch", [2, 256])
def test_each_row_counts_once(n, ranks, batch):
    right = evaluate(n, 256)
    assert (right["rows"], right["most"]) == (n, 1)
    for found in simulate(ranks, evaluate, n, batch):
        assert found == pytest.approx(right, rel=1e-6)
        assert found["rows"] == n


def test_every_layer_is_back_in_its_mode_afterwards():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    with evaluating(model):
        assert [m.training for m in model.modules()] == [False, False, False]
    assert [m.training for m in model.modules()] == [True, True, False]


@pytest.mark.parametrize(
    ("metric", "prediction", "target", "values"),
    [
        (accuracy, [[0.1, 0.9], [0.8, 0.2]], [1, 1], [1, 0]),
        (TopK(2), [[0.1, 0.9, 0.5], [0.8, 0.2, 0.1]], [2, 2], [1, 0]),
        (absolute_error, [1.0, 4.0], [3.0, 3.0], [2, 1]),
        (absolute_error, [[1.0, 4.0], [0.0, 0.0]], [[3.0, 3.0], [0.0, 0.0]], [1.5, 0]),
    ],
)
def test_metrics_give_one_value_per_row(metric, prediction, target, values):
    assert metric(torch.tensor(prediction), torch.tensor(target)).tolist() == values


def test_a_loss_with_further_dimensions_is_averaged_within_the_row():
    task = Supervised(nn.MSELoss(reduction="none"))
    losses = task.loss(nn.Identity(), (torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.zeros(2, 2)))
    assert losses.tolist() == [5, 4]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    done = launch(tmp_path_factory.mktemp("trained"), 2, *TINY)
    assert done.status == 0, done.error
    return done


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_kept_weights_give_the_metrics_of_the_end_of_training(tmp_path, trained, ranks):
    end = trained.metrics[-1]
    for load in (trained.run_dir, trained.run_dir / "checkpoints", trained.run_dir / "checkpoints" / "step_00000004"):
        again = launch(tmp_path / load.name, ranks, *TINY, "mode=evaluate", f"checkpoint.load={load}")
        assert again.status == 0, again.error
        assert again.metrics[-1]["test/rows"] == 10
        assert again.metrics[-1]["test/loss"] == pytest.approx(end["test/loss"], rel=1e-6)
        assert again.metrics[-1]["test/accuracy"] == pytest.approx(end["test/accuracy"])
        assert again.state["weights_sha256"] == trained.state["weights_sha256"]
        assert again.state["state"] == "finished"


def test_without_test_rows_nothing_is_evaluated(tmp_path):
    done = launch(tmp_path, 2, *TINY, "data=train_only")
    assert done.status == 0, done.error
    assert done.values("test/loss") == []
    assert done.state["state"] == "finished"
