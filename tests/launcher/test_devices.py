"""What becomes of more devices than the global batch can feed."""

import math

import pytest

from launcher.configure.devices import for_devices, in_config_words
from launcher.configure.schema import BatchConfig, RunConfig
from launcher.processes.errors import SettingsError


def settings(optimizer=None, **batch):
    node = {"_target_": "torch.nn.Linear"}
    config = RunConfig(model=node, task=node, optimizer={**node, **(optimizer or {"lr": 0.1})})
    config.batch = BatchConfig(**batch)
    return config


@pytest.fixture(autouse=True)
def _rows(monkeypatch):
    monkeypatch.setattr(RunConfig, "__post_init__", lambda _self: None)


FEEDS = "batch.global_size=64 feeds 4 devices with batch.min_per_device=16 rows each, and there are 5"

REMEDY = "raise batch.global_size to 80, lower batch.min_per_device, or let it grow with batch.too_many_devices=grow"


def test_as_many_devices_as_the_batch_feeds_need_no_word():
    run = settings(global_size=64)
    assert for_devices(run, 4) == (run, [])


def test_idle_devices_are_told_with_the_remedy():
    run = settings(global_size=64)
    found, notes = for_devices(run, 5)
    assert found == run
    assert notes == [f"1 of 5 devices idles: {FEEDS}; {REMEDY}"]


def test_error_refuses():
    with pytest.raises(SettingsError) as caught:
        for_devices(settings(global_size=64, too_many_devices="error"), 5)
    assert str(caught.value) == (
        f"{FEEDS}; raise batch.global_size to 80, lower batch.min_per_device or start 4 processes"
    )


@pytest.mark.parametrize(("rule", "rate"), [("none", 0.1), ("linear", 0.125), ("sqrt", 0.1 * math.sqrt(1.25))])
def test_grow_raises_the_batch_and_the_rate_by_the_rule(rule, rate):
    run, notes = for_devices(settings(global_size=64, too_many_devices="grow", lr_rule=rule), 5)
    assert run.batch.global_size == 80
    assert run.optimizer["lr"] == pytest.approx(rate)
    assert notes[0] == f"batch.global_size grows from 64 to 80: {FEEDS}"
    assert notes[1:] == ([] if rule == "none" else [f"optimizer.lr goes from 0.1 to {rate:g} by batch.lr_rule={rule}"])


def test_a_rule_without_a_rate_is_refused():
    run = settings({"lr": None}, global_size=64, too_many_devices="grow", lr_rule="sqrt")
    with pytest.raises(SettingsError, match=r"batch.lr_rule=sqrt needs optimizer.lr, found None; set it or batch.lr_r"):
        for_devices(run, 5)


def test_messages_of_plans_speak_of_settings():
    assert in_config_words("global_size=3 in world_size=2, tail='x'; batch.tail") == (
        "batch.global_size=3 in processes=2, batch.tail='x'; batch.tail"
    )
