"""``mode=tune`` and ``batch.max_per_device=auto`` on real ranks that really run out of memory."""

import json
import os
from functools import partial

import pytest

from tests.launcher import command
from tests.launcher.command import TINY, Line, in_turn
from tests.launcher.parts import leave

HUNGRY = ("model._target_=tests.launcher.parts.Hungry", "~model.in_features", "~model.out_features", "+model.mib=64")
TUNE = (*TINY, "mode=tune", "data.train.n=200", "tune.timeout_s=60")
ITS_OWN = {".lock", "command.json", "config.yaml", "status.json", "tensorboard", "tune.json", "tune.png"}
ROOM_MIB = 1500


def answer(ended):
    return json.loads((ended.run_dir / "tune.json").read_text())


def only_rank_one_is_short():
    leave(ROOM_MIB if os.environ["RANK"] == "1" else None)


def check_boundary(found, limited_by="memory"):
    """The answer is exact, and only what ran is answered."""
    ran = {probe["rows"] for probe in found["probes"] if probe["fits"]}
    short = [probe for probe in found["probes"] if not probe["fits"]]
    assert {found["fits"], found["recommended"]} <= ran
    assert found["exact"]
    assert found["limited_by"] == limited_by
    assert len(found["probes"]) <= 8
    assert found["fits"] + 1 in {probe["rows"] for probe in short}
    return short


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Command lines on one process, and what became of them."""
    place = tmp_path_factory.mktemp("alone")
    refuses = ("model._target_=tests.launcher.parts.Refuses", "~model.in_features", "~model.out_features")
    words = {
        "forward": (*TUNE, *HUNGRY),
        "capped": (*TUNE, *HUNGRY, "tune.max_rows=24", "tune.max_probes=4", "model.mib=1"),
        "nothing": (*TUNE, *HUNGRY, "model.mib=200", "batch.min_per_device=12"),
        "other": (*TUNE, *refuses, "+model.how=raises", "+model.rows=2"),
        "crashes": (*TUNE, *refuses, "+model.how=crashes", "+model.rows=1"),
        "hangs": (*TUNE, *refuses, "+model.how=hangs", "+model.rows=1", "tune.timeout_s=1"),
        "empty": (*TUNE, "data.train.n=0"),
        "few": (*TUNE, "data.train.n=3", "batch.min_per_device=6"),
        "auto": (*TINY, "batch.max_per_device=auto", "tune.max_rows=6", "batch.min_per_device=3"),
    }
    lines = [Line(place / name, line, partial(leave, ROOM_MIB)) for name, line in words.items()]
    return dict(zip(words, in_turn(*lines), strict=True))


def test_real_lack_of_memory_is_found_and_survived(alone):
    ended = alone["forward"]
    assert ended.status == 0, ended.error
    short = check_boundary(answer(ended))
    assert all("rank 0: " in probe["why_not"] for probe in short)
    assert any("allocate memory" in probe["why_not"] for probe in short)
    assert "limited by memory" in ended.output
    assert "recommended      batch.max_per_device=" in ended.output
    assert ended.state["state"] == "finished"


def test_gradients_are_looked_at_in_a_process_of_their_own(alone):
    found = answer(alone["capped"])
    assert found["about"]["ranks"] == 1
    scale = found["advice"]["noise_scale"]
    assert (scale["rows"] is None) == bool(scale["why_not"])
    assert scale["micro_batches"] >= 8, scale
    assert "noise scale      " in alone["capped"].output
    assert "devices          the global batch stays 12 rows" in alone["capped"].output


def test_nothing_is_left_but_its_own_files(alone):
    for name in ("forward", "capped"):
        assert {path.name for path in alone[name].run_dir.iterdir()} == {*ITS_OWN, "rank_0.log"}


def test_the_cap_is_named(alone):
    found = answer(alone["capped"])
    assert (found["fits"], found["limited_by"], found["exact"]) == (24, "tune.max_rows=24", True)


def test_where_nothing_fits_the_bytes_are_told(alone):
    ended = alone["nothing"]
    assert ended.status == 2
    assert "batch.min_per_device=12: not even a micro-batch of 12 rows fits: it took " in ended.error
    assert "GiB; lower batch.min_per_device" in ended.error


def test_another_error_than_lack_of_memory_is_told_at_once_with_the_size(alone):
    ended = alone["other"]
    assert ended.status == 1
    assert "tried 1 row: fits" in ended.output
    size = "a micro-batch of 8 rows failed, and not for lack of memory: rank 0: ValueError: 8 rows are too many for my"
    assert size in ended.output
    assert "error: rank 0: ValueError: 8 rows are too many for my taste" in ended.error
    assert ended.error.count("error: ") == 1
    assert "parts.py" in ended.error


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        (
            "crashes",
            1,
            "trying a micro-batch of 1 row failed, and not for lack of memory: rank 0 was killed by SIGSEGV",
        ),
        (
            "hangs",
            2,
            "trying a micro-batch of 1 row on rank 0 took longer than tune.timeout_s=1; raise it\n",
        ),
        ("empty", 2, "data.train: tests.launcher.parts.rows has no rows"),
        ("few", 2, "data.train has 3 rows, too few to try a micro-batch of 6; lower batch.min_per_device or give more"),
    ],
)
def test_what_ends_it_is_named(alone, name, status, told):
    assert alone[name].status == status
    assert told in alone[name].error
    assert "Traceback" not in alone[name].error


def test_a_run_that_finds_its_size_is_the_run_that_was_given_it(alone, tmp_path):
    found = alone["auto"]
    assert found.status == 0, found.error
    size, digest = answer(found)["recommended"], found.state["weights_sha256"]
    assert f"max_per_device: {size}\n" in (found.run_dir / "config.yaml").read_text()
    given = (*TINY, f"batch.max_per_device={size}", "batch.min_per_device=3")
    again = (*TINY, "batch.max_per_device=auto", "batch.min_per_device=3", "trainer.epochs=3")
    more = [f"hydra.run.dir={found.run_dir}"]
    by_hand, continued = in_turn(Line(tmp_path / "given", given), Line(tmp_path / "again", (*again, *more)))
    assert by_hand.state["weights_sha256"] == digest
    assert by_hand.values("train/loss") == found.values("train/loss")[: len(by_hand.values("train/loss"))]
    assert f"batch.max_per_device=auto: {size}, as the run was trained with before" in continued.output
    assert "tried" not in continued.output


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree_where_one_of_them_is_short_of_memory(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LEAST_PATIENCE_S", 300.0)  # each rank loads torch for its probes
    lines = [
        Line(
            tmp_path / where,
            (*TUNE, *HUNGRY, f"+model.where={where}", "tune.fast_enough=0.01", "batch.min_per_device=2"),
            only_rank_one_is_short,
        )
        for where in ("forward", "backward")
    ]
    for ended in in_turn(*lines, world_size=ranks):
        assert ended.status == 0, ended.error
        short = check_boundary(answer(ended))
        assert all(probe["why_not"].startswith("rank 1: ") for probe in short)
        logs = {f"rank_{rank}.log" for rank in range(ranks)}
        assert {path.name for path in ended.run_dir.iterdir()} == {*ITS_OWN, *logs}
