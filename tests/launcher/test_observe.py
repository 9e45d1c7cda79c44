"""What a run tells: status.json, metrics.jsonl, TensorBoard and config.yaml; and when it stops."""

import errno
import json
import math
import os
import re
import resource
from contextlib import contextmanager, suppress

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.observe.status import Status, read_status, to_json, write_failure, write_last, write_status
from launcher.observe.tensorboard import TensorBoard, flat
from launcher.processes.errors import SettingsError
from launcher.training.stop import StopRule
from tests.launcher.command import TINY, launch


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    finished = launch(tmp_path_factory.mktemp("observed"), 3, *TINY, "+vars.note=tiny")
    assert finished.status == 0, finished.error
    return finished


def test_the_status_of_a_finished_run(done):
    state = done.state
    assert list(state) == [
        "state",
        "step",
        "epoch",
        "rows",
        "world_size",
        "restarts",
        "metrics",
        "checkpoint_step",
        "checkpoint_error",
        "weights_sha256",
        "error",
    ]
    assert (state["state"], state["step"], state["epoch"], state["rows"]) == ("finished", 4, 1, 48)
    assert (state["world_size"], state["restarts"], state["error"]) == (3, 0, None)
    assert len(state["weights_sha256"]) == 64
    assert state["metrics"]["test/loss"] == done.values("test/loss")[-1]
    assert state["metrics"]["train/loss"] == done.values("train/loss")[-1]


def test_the_lines_of_metrics(done):
    places = [(line["step"], line["epoch"], line["rows"]) for line in done.metrics]
    assert places == [(1, 0, 12), (2, 0, 24), (2, 0, 24), (3, 1, 36), (4, 1, 48), (4, 1, 48)]
    assert [[name for name in sorted(line) if name.startswith(("train/", "test/"))] for line in done.metrics[1:3]] == [
        ["train/loss", "train/lr", "train/rows_per_s"],
        ["test/accuracy", "test/loss", "test/rows"],
    ]


def test_tensorboard_has_the_curves_and_the_settings(done):
    events = EventAccumulator(str(done.run_dir / "tensorboard"))
    events.Reload()
    for name in ("train/loss", "train/lr", "test/loss", "test/accuracy"):
        points = [(point.step, point.value) for point in events.Scalars(name)]
        lines = [(line["step"], line[name]) for line in done.metrics if name in line]
        assert points[: len(lines)] == [(step, pytest.approx(value)) for step, value in lines]
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"batch.global_size" in hparams
    assert b"vars.note" in hparams


def test_the_config_is_kept_resolved(done):
    config = yaml.safe_load((done.run_dir / "config.yaml").read_text())
    assert (config["batch"]["global_size"], config["vars"]) == (12, {"note": "tiny"})
    assert "hydra" not in config


def test_only_whole_files_are_left(done):
    assert {path.name for path in done.run_dir.iterdir()} == {
        ".lock",
        "command.json",
        "config.yaml",
        "identity.json",
        "status.json",
        "metrics.jsonl",
        "plan.txt",
        "report.html",
        "tensorboard",
        "checkpoints",
        "rank_0.log",
        "rank_1.log",
        "rank_2.log",
    }


def test_settings_become_dotted_names():
    assert flat({"a": {"b": 1, "c": None, "d": {}}, "e": [1, 2], "f": True}) == {"a.b": 1, "e": "[1, 2]", "f": True}


def test_numbers_that_are_not_finite_become_null(tmp_path):
    assert to_json({"a": [1, (math.inf, "x")]}) == '{"a": [1, [null, "x"]]}'
    assert to_json({"a": math.nan, "b": {"c": math.inf, "d": 1.5}}) == '{"a": null, "b": {"c": null, "d": 1.5}}'
    write_status(tmp_path, Status(metrics={"train/loss": math.nan}))
    assert json.loads((tmp_path / "status.json").read_text())["metrics"] == {"train/loss": None}


def test_a_failure_keeps_how_far_the_run_was(tmp_path):
    write_status(tmp_path, Status(step=7, rows=70, restarts=1))
    write_failure(tmp_path, 3, "ValueError", "no")
    assert read_status(tmp_path) == Status(
        state="failed", step=7, rows=70, restarts=1, error={"rank": 3, "type": "ValueError", "message": "no"}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_the_end_is_told_over_the_old_status_where_no_other_file_can_be_made(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_status(tmp_path, Status(step=7, metrics={f"test/metric_{number}": 0.123 for number in range(20)}))
    monkeypatch.setattr("launcher.observe.status.replace_file", refuse)
    write_failure(tmp_path, 3, "ValueError", "no")
    assert (read_status(tmp_path).state, read_status(tmp_path).step) == ("failed", 7)
    write_last(tmp_path, Status(state="preempted"))
    assert read_status(tmp_path) == Status(state="preempted")
    before = (tmp_path / "status.json").read_text()
    with pytest.raises(OSError, match="No space left on device: "):
        write_last(tmp_path, Status(state="failed", error={"message": "long" * 10_000}))
    assert (tmp_path / "status.json").read_text() == before


@contextmanager
def no_room():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_points_of_tensorboard_wait_for_room(tmp_path, capfd):
    board = TensorBoard(tmp_path, purge=1)
    for step in (1, 2, 3):
        board.scalars({"train/loss": step / 2, "train/lr": 0.1}, step)
        if step != 2:
            board.write()
            continue
        with no_room(), suppress(OSError):
            board.write()
    points = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    again = TensorBoard(tmp_path, purge=3)
    again.scalars({"train/loss": 7.0}, 3)
    again.write()
    points = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 1.0), (3, 7.0)]
    assert capfd.readouterr().err == ""


def test_a_diverging_run_says_so_and_still_writes_json(tmp_path):
    done = launch(tmp_path, 2, *TINY, "optimizer.lr=1e30", "trainer.max_steps=4")
    assert (done.status, done.state["state"], done.state["error"]["type"]) == (1, "failed", "NonFiniteError")
    assert "is not finite" in done.error
    assert all(math.isfinite(loss) for loss in done.values("train/loss"))


@pytest.mark.parametrize(
    ("rule", "state", "step"),
    [
        ("loss <= 1000", "stopped", 2),
        ("accuracy >= 0 and loss <= 1000", "stopped", 2),
        ("test/accuracy >= 0", "stopped", 2),
        ("accuracy > 1", "finished", 4),
        ("loss <= 1000 and accuracy > 1", "finished", 4),
    ],
)
def test_a_run_stops_by_its_rule(tmp_path, rule, state, step):
    done = launch(tmp_path, 2, *TINY, f'trainer.stop_when="{rule}"')
    assert done.status == 0, done.error
    assert (done.state["state"], done.state["step"]) == (state, step)
    assert f"{state} after {step} steps and {12 * step} rows; run folder {done.run_dir}\n" in done.output


@pytest.mark.parametrize(
    ("words", "steps", "evaluations"),
    [
        (("trainer.max_steps=3",), 3, [2, 3]),
        (("trainer.max_steps=2",), 2, [2]),
        (("trainer.max_steps=99",), 4, [2, 4]),
        (("trainer.epochs=5", "trainer.evaluate_every=2"), 10, [4, 8, 10]),
        (("trainer.epochs=3", "trainer.evaluate_every=0"), 6, [6]),
    ],
)
def test_where_a_run_ends_and_is_evaluated(tmp_path, words, steps, evaluations):
    done = launch(tmp_path, 2, *TINY, *words)
    assert done.state["step"] == steps
    assert [line["step"] for line in done.metrics if "test/loss" in line] == evaluations


@pytest.mark.parametrize(("every", "spans"), [(3, [(0, 2), (2, 3), (3, 4)]), (100, [(0, 2), (2, 4)])])
def test_a_line_of_metrics_is_the_mean_since_the_last_which_an_epoch_ends(tmp_path, every, spans):
    all_steps = launch(tmp_path / "all", 2, *TINY).values("train/loss")
    few = launch(tmp_path / "few", 2, *TINY, f"trainer.log_every={every}")
    right = [sum(all_steps[start:stop]) / (stop - start) for start, stop in spans]
    assert few.values("train/loss") == pytest.approx(right, rel=1e-5)
    shown = [float(loss) for loss in re.findall(r"^epoch.*  train/loss (\S+)", few.output, re.MULTILINE)]
    assert shown == pytest.approx([sum(all_steps[:2]) / 2, sum(all_steps[2:]) / 2], abs=1e-4)


@pytest.mark.parametrize("words", [(), ("trainer.log_every=3",), ("batch.tail=pad",), ("batch.max_per_device=2",)])
def test_the_logged_loss_is_the_mean_over_the_rows_that_count(tmp_path, words):
    torch.save({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, tmp_path / "zeros.pt")
    done = launch(tmp_path, 3, *TINY, "checkpoint.load=zeros.pt", "optimizer.lr=0", *words)
    assert done.status == 0, done.error
    for name in ("train/loss", "test/loss"):
        assert done.values(name) == pytest.approx([math.log(3)] * len(done.values(name)), rel=1e-6)


def test_the_scheduler_moves_once_per_step_over_the_length_of_the_run(tmp_path):
    done = launch(tmp_path, 2, *TINY, "scheduler=cosine", "optimizer.lr=0.1", "batch.max_per_device=3")
    right = [0.05 * (1 + math.cos(math.pi * step / 4)) for step in (0, 1, 2, 3)]
    assert done.values("train/lr") == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize(
    ("rule", "results", "holds"),
    [
        (None, {"loss": 0}, False),
        ("loss < 1", {"loss": 0.5}, True),
        ("loss < 1", {"loss": 1.0}, False),
        ("loss<=1e-1", {"loss": 0.1}, True),
        ("loss > -1.5 and accuracy >= .5", {"loss": 0, "accuracy": 0.5}, True),
        ("loss > -1.5 and accuracy >= .5", {"loss": 0, "accuracy": 0.4}, False),
        ("loss < 1", {"loss": math.nan}, False),
    ],
)
def test_rules(rule, results, holds):
    assert StopRule.parse(rule, ["loss", "accuracy"]).holds(results) is holds


@pytest.mark.parametrize("rule", ["loss", "loss = 1", "loss < x", "loss < 1 or accuracy > 1", "and", "loss < 1.2.3"])
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(
        SettingsError, match=r"trainer\.stop_when='.*': .* (is no condition; write e\.g\.|is not a number)"
    ):
        StopRule.parse(rule, ["loss", "accuracy"])
