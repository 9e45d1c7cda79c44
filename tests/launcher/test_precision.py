"""Number formats: float32, bfloat16, and float16 with a loss scale that all ranks share."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from launcher.testing import simulate
from launcher.training.compute import Compute
from launcher.training.reduction import Averaged
from launcher.training.step import Stepper
from launcher.training.task import Supervised
from launcher.training.wrap import wrap
from samplers import Share
from tests.launcher.command import TINY, launch

CPU = torch.device("cpu")


class Watched(nn.Linear):
    """Remembers in which format it computed."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        self.dtype = outputs.dtype
        return outputs


def steps(name, batches, clip_norm=None):
    """On a rank: train on (inputs, target) batches, one per step; what came of it."""
    torch.manual_seed(0)
    model = Watched(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    compute = Compute.of(name, CPU)
    wrapped = wrap(model, False, {}, CPU)
    stepper = Stepper(
        wrapped,
        Supervised(nn.CrossEntropyLoss(reduction="none")),
        optimizer,
        scheduler,
        compute,
        Averaged(wrapped, divides_by=world_size),
        clip_norm=clip_norm,
    )
    weights, rates = [model.weight.detach().clone()], [stepper.learning_rate]
    for number, batch in enumerate(batches):
        rows = len(batch[0])
        stepper.step([(batch, Share(number, rows, rows, rows * world_size, True))])
        weights.append(model.weight.detach().clone())
        rates.append(stepper.learning_rate)
    return {"weights": weights, "rates": rates, "dtype": model.dtype, "scale": compute.scaler.get_scale()}


def batch(scale=1.0):
    return torch.arange(12.0).view(4, 3) / 12 * scale, torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("fp32", torch.float32, 0), ("bf16", torch.bfloat16, 1e-2), ("fp16", torch.float16, 1e-3)],
)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_step_is_that_of_float32_up_to_rounding(name, dtype, tolerance, clip_norm):
    right = steps("fp32", [batch()], clip_norm)
    found = steps(name, [batch()], clip_norm)
    assert found["dtype"] == dtype
    assert found["weights"][1].dtype == torch.float32
    change, exact = (r["weights"][1] - r["weights"][0] for r in (found, right))
    torch.testing.assert_close(change, exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()))
    assert exact.abs().max() > 0


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_that_overflows_on_one_rank_is_left_out_on_all(clip_norm):
    def run():
        wild = batch(1e30 if dist.get_rank() == 1 else 1.0)
        return steps("fp16", [batch(), wild, batch()], clip_norm)

    found = simulate(2, run)
    for result in found:
        first, second, third, fourth = result["weights"]
        assert not torch.equal(first, second)
        assert torch.equal(second, third)
        assert not torch.equal(third, fourth)
        assert result["rates"] == [0.1, 0.05, 0.05, 0.025]
        assert result["scale"] == 2.0**15
    assert torch.equal(found[0]["weights"][3], found[1]["weights"][3])


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_in_the_first_step_leaves_no_momentum(fused, clip_norm):
    model, compute = nn.Linear(100, 3), Compute.of("fp16", CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=fused)
    before = model.weight.detach().clone()
    for value, taken in ((float("inf"), False), (0.01, True)):
        unwritten = [torch.full((300,), 7e8) for _ in range(50)]
        del unwritten
        compute.scaler.scale(torch.zeros(1))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value * compute.scaler.get_scale())
        assert compute.step(optimizer, model, clip_norm) is taken
    torch.testing.assert_close(model.weight, before - 0.1 * 0.01 * 1.9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_in_half_precision_learns(tmp_path, precision):
    done = launch(tmp_path, 2, *TINY, f"trainer.precision={precision}", "trainer.clip_norm=1", "trainer.epochs=10")
    assert done.status == 0, done.error
    losses = done.values("test/loss")
    assert losses[-1] < losses[0]
    assert "WARNING" not in done.log(0) + done.log(1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_takes_the_same_steps(tmp_path, backend):
    plain = launch(tmp_path / "plain", 2, *TINY, "trainer.epochs=1")
    compiled = launch(tmp_path / "compiled", 2, *TINY, "trainer.epochs=1", f"trainer.compile={backend}")
    assert compiled.status == 0, compiled.error
    assert compiled.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=1e-5)
    assert compiled.values("test/loss") == pytest.approx(plain.values("test/loss"), rel=1e-5)


def test_channels_last_takes_the_same_steps(tmp_path):
    words = ("trainer.max_steps=3", "trainer.log_every=1", "launch.threads_per_rank=1")
    plain = launch(tmp_path / "plain", 2, *words)
    turned = launch(tmp_path / "turned", 2, *words, "trainer.channels_last=true")
    assert turned.status == 0, turned.error
    assert turned.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=1e-4)
    assert turned.values("test/accuracy") == pytest.approx(plain.values("test/accuracy"), abs=0.01)
