"""A gradient that is not finite stops the run and names the rows, or is left out and counted."""

import json
import math

import pytest
import torch
from torch import nn

from launcher.training.finite import MOST_OVERFLOWS, FiniteSteps, NonFiniteError, check_weights, gradients_are_finite
from tests.launcher.command import TINY, launch

LOSSES = [torch.tensor(1.0), torch.tensor(2.0)]
EXPLODES = (*TINY, "model=explodes", "checkpoint.every_steps=1", "trainer.evaluate_every=0")


def with_gradients(*gradients):
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients])
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = gradient.clone()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bad", "finite"), [(1e4, True), (math.nan, False), (math.inf, False), (-math.inf, False)])
def test_one_number_decides(dtype, bad, finite):
    gradients = [torch.randn(3, 2).to(dtype), torch.tensor([1.0, bad], dtype=dtype), torch.randn(4)]
    model = with_gradients(*gradients)
    assert gradients_are_finite(model) == finite
    for parameter, before in zip(model, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, before, rtol=0, atol=0, equal_nan=True)


def test_gradients_of_every_kind():
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 3])).sum().backward()
    assert gradients_are_finite(embedding)
    embedding.weight.grad = embedding.weight.grad * math.inf
    assert not gradients_are_finite(embedding)
    assert gradients_are_finite(nn.Linear(2, 2))  # none at all


def test_steps_are_left_out_as_long_as_they_are_few():
    steps = FiniteSteps(skips=True, most_in_a_row=2, where=lambda: "step 9")
    good, bad = with_gradients(torch.ones(2)), with_gradients(torch.tensor([math.nan]))
    assert [steps.allow(model, LOSSES) for model in (bad, bad, good, bad, bad)] == [False, False, True, False, False]
    with pytest.raises(
        NonFiniteError, match=r"step 9 is not finite; all losses are; 3 steps in a row were left out, and "
    ):
        steps.allow(bad, LOSSES)
    assert (steps.skipped, steps.in_a_row) == (5, 3)


def test_loss_scaling_does_not_leave_out_steps_for_ever():
    steps = FiniteSteps(where=lambda: "step 99")
    for _ in range(3):
        for _ in range(MOST_OVERFLOWS):
            steps.scaled(taken=False)
        steps.scaled(taken=True)
    for _ in range(MOST_OVERFLOWS):
        steps.scaled(taken=False)
    with pytest.raises(
        NonFiniteError, match=r"step 99 is not finite, nor are those of the 40 steps before it, however"
    ):
        steps.scaled(taken=False)


def test_weights_that_are_not_finite_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    check_weights(model, lambda: "step_00000003")
    model[1].bias.requires_grad_(requires_grad=False)[0] = -math.inf  # a mask
    check_weights(model, lambda: "step_00000003")
    with torch.no_grad():
        model[1].weight[0, 0] = math.inf
    with pytest.raises(
        NonFiniteError, match=r"in 1\.weight, .* the newest checkpoint is step_00000003; lower optimizer"
    ):
        check_weights(model, lambda: "step_00000003")


def test_weights_that_are_not_finite_are_not_kept(tmp_path):
    words = (*TINY, "optimizer.lr=1e38", "checkpoint.every_steps=1", "checkpoint.keep=1", "trainer.evaluate_every=0")
    done = launch(tmp_path, 2, *words)
    assert (done.status, done.state["error"]["type"]) == (1, "NonFiniteError")
    for folder in (done.run_dir / "checkpoints").glob("step_*"):
        weights = torch.load(folder / "model.pt", weights_only=True)
        assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.parametrize("exact", [(), ("batch.exact=true", "batch.shard_rows=2")], ids=["fast", "exact"])
def test_a_loss_that_is_not_finite_stops_the_run_although_its_gradient_is(tmp_path, exact):
    loss = ("loss._target_=tests.launcher.parts.infinite_loss", "~loss.reduction", "~loss.label_smoothing")
    done = launch(tmp_path, 2, *TINY, *loss, "trainer.evaluate_every=0", *exact)
    assert (done.status, done.state["step"]) == (1, 0)
    assert "nor are losses on rank" in done.state["error"]["message"]


@pytest.mark.parametrize("exact", [False, True])
def test_stop_names_step_ranks_and_rows(tmp_path, exact):
    shards = ("batch.exact=true", "batch.shard_rows=2", "trainer.max_steps=9") if exact else ()
    done = launch(tmp_path, 3, *EXPLODES, "model.rank=1", f"model.steps=[{5 if exact else 3}]", *shards)
    assert (done.status, done.state["state"], done.state["step"]) == (1, "failed", 2)
    message = done.state["error"]["message"]
    rows = message.partition("rows ")[2].partition(")")[0].split(", ")
    assert message.startswith("the gradient of step 3 (epoch 2, rows ")
    assert len(set(rows)) == 12
    assert message.endswith("; nor are losses on rank 1; trainer.on_nonfinite=skip leaves such steps out")
    assert done.error.count("the gradient of step 3") == 1
    assert [path.name for path in sorted(done.run_dir.glob("checkpoints/step_*"))] == ["step_00000001", "step_00000002"]


def test_skip_leaves_weights_and_loss_as_they_are(tmp_path):
    done = launch(tmp_path / "skip", 2, *EXPLODES, "trainer.on_nonfinite=skip", "model.rank=0")
    assert (done.status, done.state["state"], done.state["step"]) == (0, "finished", 4)
    assert "step left out: the gradient of step 3 (epoch 2, rows " in done.output
    assert done.values("train/skipped") == [1]
    assert len(done.values("train/loss")) == 3
    assert all(math.isfinite(loss) for loss in done.values("train/loss"))


@pytest.mark.parametrize(
    "way", [(), ("batch.exact=true", "batch.shard_rows=4"), ("batchnorm=shard", "batch.shard_rows=3")]
)
def test_a_step_that_is_left_out_moves_no_running_statistics(tmp_path, way):
    data = "data.train._target_=tests.launcher.parts.poisoned"
    done = launch(tmp_path, 2, *TINY, "model=normalised", data, "trainer.on_nonfinite=skip", *way)
    assert (done.status, done.state["step"]) == (0, 4), done.error
    weights = torch.load(done.run_dir / "checkpoints" / "step_00000004" / "model.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert weights["1.num_batches_tracked"] == 2
    assert all(math.isfinite(loss) for loss in done.values("test/loss"))


def test_a_count_of_left_out_steps_is_kept(tmp_path):
    line = (*EXPLODES, "trainer.on_nonfinite=skip", "trainer.max_skipped=2", "model.steps=[1,2]", "trainer.max_steps=2")
    assert launch(tmp_path, 1, *line).status == 0
    done = launch(tmp_path, 1, *line[:-1], "trainer.max_steps=4")
    assert done.status == 1
    assert done.state["error"]["message"].endswith("3 steps in a row were left out, and trainer.max_skipped=2")
    assert json.loads((done.run_dir / "checkpoints" / "step_00000002" / "run.json").read_text())["step"] == 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.on_nonfinite=skipp", "trainer.on_nonfinite=skipp is not one of stop, skip"),
        ("trainer.max_skipped=0", "trainer.max_skipped=0 is too small: the least is 1"),
    ],
)
def test_wrong_settings(tmp_path, word, message):
    done = launch(tmp_path, 2, *TINY, word)
    assert done.status == 2
    assert message in done.error
