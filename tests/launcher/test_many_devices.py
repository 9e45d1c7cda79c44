"""Runs on more ranks than the global batch can feed."""

import pytest

from tests.launcher.command import TINY, launch

FEEDS = ("batch.min_per_device=4",)


def test_ranks_without_rows_idle_until_the_end(tmp_path):
    done = launch(tmp_path / "five", 5, *TINY, *FEEDS)
    three = launch(tmp_path / "three", 3, *TINY, *FEEDS)
    assert done.status == 0, done.error
    assert done.state["world_size"] == 3
    assert done.state["weights_sha256"] == three.state["weights_sha256"]
    assert done.output.count("2 of 5 devices idle: batch.global_size=12 feeds 3 devices") == 1
    assert "WARNING launcher.cli: 2 of 5 devices idle" in done.log(0)


@pytest.mark.parametrize(("rule", "rate"), [("none", 0.05), ("linear", 0.1)])
def test_the_batch_grows_with_the_devices(tmp_path, rule, rate):
    words = ("batch.too_many_devices=grow", f"batch.lr_rule={rule}", "batch.global_size=8", "data.train.n=32")
    done = launch(tmp_path, 4, *TINY, *FEEDS, *words, "trainer.epochs=1")
    assert done.status == 0, done.error
    assert (done.state["world_size"], done.state["step"], done.state["rows"]) == (4, 2, 32)
    assert done.values("train/lr") == [rate, rate]
    assert done.output.count("batch.global_size grows from 8 to 16: batch.global_size=8 feeds 2 devices") == 1
    assert "  global_size: 16\n" in (done.run_dir / "config.yaml").read_text()


def test_ranks_without_rows_end_when_a_working_one_fails(tmp_path):
    done = launch(tmp_path, 5, *TINY, *FEEDS, "model._target_=tests.launcher.parts.FailsOnRankOne")
    assert done.statuses == [1] * 5
    assert done.error.count("error: ") == 1
    assert done.state["error"]["rank"] == 1
