"""A user's own package beside the command: model, dataset, task and configs, nothing copied from the launcher."""

import json
import re
import sys
import textwrap

import pytest

from tests.launcher.command import TINY, launch
from tests.launcher.test_torchrun import end, start

FILES = {
    "mine/__init__.py": "",
    "mine/parts.py": """
        import torch
        from torch import nn
        from torch.utils.data import Dataset

        from launcher.training.task import Scores


        class Pairs(Dataset):
            def __init__(self, rows, broken=None):
                self.rows, self.broken = rows, broken

            def __len__(self):
                return self.rows

            def __getitem__(self, index):
                if index == self.broken:
                    raise LookupError(f"row {index} is broken")
                return {"x": torch.full((2,), index / self.rows), "y": torch.tensor([index / self.rows])}


        class Net(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))

            def forward(self, x):
                return self.layers(x)


        class Regression:
            def __init__(self, scale):
                self.scale = scale

            def loss(self, model, batch):
                return self.score(model, batch).losses

            def score(self, model, batch):
                prediction = model(batch["x"])
                return Scores(self.scale * (prediction - batch["y"]).square().mean(1), prediction, batch["y"])


        class Unfinished(Regression):
            def score(self, model, batch):
                return self.grade(batch)


        class Stubborn(Net):
            def __init__(self, width):
                raise ArithmeticError(f"no {width} today")
        """,
    "settings/experiment/mine.yaml": """
        # @package _global_
        defaults:
          - override /data: pairs
          - override /model: net
          - override /task: regression
          - override /loss: null
          - override /metrics: error
        batch: {global_size: 8, min_per_device: 1}
        trainer: {epochs: 3, log_every: 1}
        optimizer: {lr: 0.1}
        launch: {threads_per_rank: 1}
        """,
    "settings/data/pairs.yaml": """
        train: {_target_: mine.parts.Pairs, rows: 24, broken: null}
        test: {_target_: mine.parts.Pairs, rows: 7}
        """,
    "settings/model/net.yaml": "{_target_: mine.parts.Net, width: 3}",
    "settings/task/regression.yaml": "{_target_: mine.parts.Regression, scale: 2.0}",
    "settings/metrics/error.yaml": "error: {_target_: launcher.training.task.absolute_error}",
}
MINE = ("--config-dir=settings", "experiment=mine")


def write(folder):
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def project(tmp_path):
    return write(tmp_path / "project")


@pytest.mark.parametrize("ranks", [1, 3])
def test_it_trains_and_evaluates(project, tmp_path, ranks):
    done = launch(project, ranks, *MINE)
    assert done.status == 0, done.error
    assert done.values("test/rows") == [7, 7, 7]
    assert done.values("train/loss")[-1] < done.values("train/loss")[0]
    assert done.state["metrics"]["test/error"] > 0
    again = launch(write(tmp_path / "again"), 2, *MINE, "mode=evaluate", "checkpoint.load=../project/run")
    assert again.status == 0, again.error
    assert again.values("test/loss") == pytest.approx(done.values("test/loss")[-1:])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("model._target_=mine.parts.Stubborn", "ArithmeticError: no 3 today"),
        ("task._target_=mine.parts.Unfinished", "AttributeError: 'Unfinished' object has no attribute 'grade'"),
        ("data.train.broken=13", "LookupError: row 13 is broken"),
        ("data.train.broken=1", "LookupError: row 1 is broken"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_in_it_keeps_its_traceback_exactly_once(project, words, error, ranks):
    done = launch(project, ranks, *MINE, words)
    assert done.status == 1
    assert done.error.count("Traceback (most recent call last)") == 1
    assert re.search(rf'File "{project}/mine/parts.py", line \d+, in \w+', done.error)
    assert f"\n{error}\n" in done.error
    assert done.error.splitlines()[-1].startswith("error: rank ")
    assert done.error.endswith(f": {error}\n")
    assert (done.state["state"], done.state["error"]["type"]) == ("failed", error.partition(":")[0])


def test_an_error_in_a_worker_of_a_loader_is_told_once_with_both_tracebacks(project):
    words = (*MINE, "data.train.broken=13", "data.workers=1", "hydra.run.dir=run")
    status, _, error = end(start(project, [sys.executable, "-m", "launcher", *words]))
    assert status == 1
    told = "row 13 is broken (in DataLoader worker process 0)"
    assert error.count("Traceback (most recent call last)") == 2
    assert error.count("\nLookupError: row 13 is broken\n") == 1
    assert error.endswith(f"\nerror: rank 0: LookupError: {told}\n")
    assert json.loads((project / "run" / "status.json").read_text())["error"]["message"] == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model._target_=mine.parts.Network", "model._target_=mine.parts.Network: "),
        ("model._target_=mien.parts.Net", "model._target_=mien.parts.Net: "),
        ("+model.depth=3", "model.depth: mine.parts.Net takes no argument 'depth'; did you mean 'width'?"),
        ("~model.width", "model: mine.parts.Net: missing a required argument: 'width'; add it: +model.NAME=..."),
        ("experiment=mein", "experiment=mein: there is no such choice; did you mean 'mine'?"),
    ],
)
def test_a_wrong_setting_of_it_is_told_without_a_traceback(project, words, message):
    done = launch(project, 2, *MINE, words)
    assert done.status == 2
    assert done.error.startswith(f"error: {message}")
    assert done.error.count("\n") == 1


def test_its_choices_stand_beside_those_that_ship(project):
    done = launch(project, 1, "--config-dir=settings", "model=ent")
    assert (
        done.error
        == "error: model=ent: there is no such choice; did you mean 'net'?; model can be net, resnet18, small_conv\n"
    )


def test_evaluation_is_switched_off_by_null(tmp_path):
    done = launch(tmp_path, 2, *TINY, "data.test=null")
    assert done.status == 0, done.error
    assert done.values("test/loss") == []
    assert done.values("train/loss")
