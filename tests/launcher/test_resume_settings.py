"""A run that is continued with other settings, or in the folder of another: what may change, and what may not."""

import json
import os
import shutil
import time

import pytest
import torch

from launcher.checkpoints import store
from launcher.files import lock
from tests.launcher.command import Line, in_turn, launch
from tests.launcher.survivor import SURVIVOR, back_to, contents, facts, forge, ledger, lines_without_speed


def test_old_checkpoints_go_when_a_new_one_is_whole(tmp_path):
    few, one = in_turn(
        Line(tmp_path / "few", (*SURVIVOR, "checkpoint.keep=2", "checkpoint.every_steps=4")),
        Line(tmp_path / "one", (*SURVIVOR, "checkpoint.keep=1", "checkpoint.every_steps=null")),
    )
    assert sorted(path.name for path in (few.run_dir / "checkpoints").iterdir()) == ["step_00000004", "step_00000006"]
    assert [path.name for path in (one.run_dir / "checkpoints").iterdir()] == ["step_00000006"]


def test_a_finished_run_that_is_asked_for_nothing_more_stays_as_it_is(tmp_path):
    first = launch(tmp_path, 2, *SURVIVOR)
    before = contents(first.run_dir)
    again = launch(tmp_path, 2, *SURVIVOR, "trainer.log_every=1")
    assert again.status == 0, again.error
    assert "nothing is left to do: the run has ended there; its results stay as they are\n" in again.output
    assert contents(first.run_dir) == before


def test_more_can_be_asked_of_a_finished_run(tmp_path):
    long, short, longer = in_turn(
        Line(tmp_path / "long", (*SURVIVOR, "trainer.epochs=4")),
        Line(tmp_path / "short", SURVIVOR),
        Line(tmp_path / "short", (*SURVIVOR, "trainer.epochs=4", "checkpoint.keep=3", "data.workers=0")),
    )
    assert short.status == longer.status == 0
    assert "note: resumed with other settings: trainer.epochs 2 -> 4, checkpoint.keep 100 -> 3\n" in longer.output
    assert longer.state["weights_sha256"] == long.state["weights_sha256"]
    assert lines_without_speed(longer) == lines_without_speed(long)
    config = (longer.run_dir / "config.yaml").read_text()
    assert "  epochs: 4\n" in config
    assert len(store.generations(longer.run_dir / "checkpoints")) == 3


@pytest.mark.parametrize("changed", ["optimizer.lr=0.02", "+scheduler.eta_min=0.01", "trainer.epochs=4"])
def test_changed_rates_hold_from_where_the_run_continues(tmp_path, changed):
    words = (*SURVIVOR, "scheduler=cosine", "trainer.log_every=1")
    before, after = Line(tmp_path / "before", words), Line(tmp_path / "after", (*words, changed))
    mixed = Line(tmp_path / "mixed", after.words, lambda: back_to(2, before.folder, mixed.folder))
    done = in_turn(before, after, mixed)
    old, new, found = (each.values("train/lr") for each in done)
    assert found == [*old[:2], *new[2:]]
    assert old != new[: len(old)]
    stretched = "note: the scheduler was made for 6 steps (scheduler.T_max) and is now for 12: from here on the "
    assert [each.output.count(stretched) for each in done] == [0, 0, changed == "trainer.epochs=4"]


def test_a_run_continues_from_a_path_in_a_folder_of_its_own(tmp_path):
    whole, *others = in_turn(
        Line(tmp_path / "whole", SURVIVOR),
        Line(tmp_path / "a", (*SURVIVOR, "checkpoint.resume=../whole/run/checkpoints/step_00000004")),
        Line(tmp_path / "b", (*SURVIVOR, f"checkpoint.resume={tmp_path}/whole/run", "trainer.epochs=3")),
        Line(tmp_path / "b", (*SURVIVOR, f"checkpoint.resume={tmp_path}/whole/run", "trainer.epochs=3")),
    )
    four, three, used = others
    assert four.state["weights_sha256"] == whole.state["weights_sha256"]
    assert [line["step"] for line in three.metrics if "test/loss" in line] == [9]
    assert used.status == 2
    assert used.error == (
        f"error: hydra.run.dir={tmp_path}/b/run holds a run already; nothing is overwritten: give another folder, or "
        "continue that run with checkpoint.resume=auto\n"
    )


def test_a_restart_that_must_not_resume_begins_anew(tmp_path):
    model = "model._target_=tests.launcher.parts.FailsOnce"
    done = launch(tmp_path, 1, *SURVIVOR, model, "checkpoint.resume=never", "trainer.log_every=1", times=2)
    assert done.status == 0, done.error
    assert [line["step"] for line in done.metrics if "train/loss" in line] == [1, 2, 3, 4, 5, 6]
    assert len(ledger(tmp_path, 1)) == 5 + 6


def test_a_folder_in_use_is_left_alone(tmp_path):
    first, second = in_turn(
        Line(tmp_path, (*SURVIVOR, "trainer.max_steps=2")), Line(tmp_path, SURVIVOR, lambda: in_use(tmp_path / "run"))
    )
    assert (first.status, second.status) == (0, 2)
    assert second.error.startswith(f"error: hydra.run.dir={tmp_path}/run is in use by process ")
    assert second.error.endswith("; wait until that has ended, or give another folder\n")
    assert first.state["step"] == 2


def in_use(run_dir):
    """Let another process hold the folder, as long as this one lives."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        parent = os.getppid()
        with lock(run_dir / ".lock"):
            os.write(writer, b".")
            while os.getppid() == parent:
                time.sleep(0.05)
        os._exit(0)
    os.read(reader, 1)


CHANGES = {
    "batch.global_size=9": "other rows: batch.global_size is 8 there, 9 here",
    "batch.tail=pad": "other rows: batch.tail is drop there, pad here",
    "batch.exact=true": "another way to compute a step: batch.exact is false there, true here",
    "batchnorm=sync seed=1": (
        "another seed and another way to compute a step: seed is 0 there, 1 here; batchnorm is local there, sync here"
    ),
    "data.train.n=27": "other rows: data.train.n is 26 there, 27 here",
    "+data.order._target_=samplers.Sequential": (
        "other rows: data.order._target_ is unset there, samplers.Sequential here"
    ),
    "model._target_=tests.launcher.parts.Killed": (
        "another model: model._target_ is tests.launcher.parts.Ledger there, tests.launcher.parts.Killed here"
    ),
    "optimizer=adamw": "another optimizer: optimizer._target_ is torch.optim.SGD there, torch.optim.AdamW here",
}


def test_what_would_make_it_another_run_is_refused_and_nothing_overwritten(tmp_path):
    def remember():
        shutil.copytree(tmp_path / "run", tmp_path / "before", dirs_exist_ok=True)

    words = iter(CHANGES)
    _, *refused = in_turn(
        Line(tmp_path, (*SURVIVOR, "trainer.max_steps=2")),
        Line(tmp_path, (*SURVIVOR, *next(words).split()), remember),
        *(Line(tmp_path, (*SURVIVOR, *word.split())) for word in words),
    )
    place = f"checkpoint.resume=auto: {tmp_path}/run/checkpoints/step_00000002"
    remedy = "give the settings of that run, or give this one another hydra.run.dir"
    for found, sides in zip(refused, CHANGES.values(), strict=True):
        assert found.status == 2
        assert found.error.startswith(f"error: {place}: a run with {sides}"), found.error
        assert found.error.endswith(f"; {remedy}\n")
    assert contents(tmp_path / "run") == contents(tmp_path / "before")


def test_data_and_code_that_changed_behind_the_back_of_the_settings_are_refused(tmp_path):
    (tmp_path / "rows").write_text("26")
    words = (
        *SURVIVOR,
        "hydra.job.chdir=false",
        "data.train._target_=tests.launcher.parts.as_a_file_says",
        "~data.train.n",
        "model._target_=tests.launcher.parts.AsAFileSays",
    )
    _, more, other = in_turn(
        Line(tmp_path, (*words, "trainer.max_steps=2")),
        Line(tmp_path, words, lambda: (tmp_path / "rows").write_text("27")),
        Line(tmp_path, words, lambda: ((tmp_path / "rows").write_text("26"), (tmp_path / "bias").touch())),
    )
    place = f"error: checkpoint.resume=auto: {tmp_path}/run/checkpoints/step_00000002: "
    assert more.error.startswith(f"{place}an epoch has 26 rows there, 27 here: data.train or data.order give others;")
    assert other.error.startswith(f"{place}weights of another model: it lacks bias;")
    assert (more.status, other.status) == (2, 2)
    assert other.state["state"] == "finished"


WRONG = {
    "checkpoint.every_steps=0": "checkpoint.every_steps=0 is too small: the least is 1",
    "checkpoint.keep=0": "checkpoint.keep=0 is too small: the least is 1",
    "checkpoint.resume=''": "checkpoint.resume is empty; set auto, never or a path",
    "checkpoint.resume=a checkpoint.load=b": "both give weights; leave one out",
    "checkpoint.resume=a mode=evaluate": "mode=evaluate takes its weights from checkpoint.load",
    "+scheduler._target_=tests.launcher.parts.Unkeepable": (
        "scheduler['seen'][0]: a checkpoint cannot keep builtins.object: reading it back would run code"
    ),
}


def test_wrong_settings_of_checkpoints(tmp_path):
    found = in_turn(*(Line(tmp_path, (*SURVIVOR, *wrong.split())) for wrong in WRONG))
    for wrong, done in zip(WRONG, found, strict=True):
        assert done.status == 2, wrong
        assert WRONG[wrong] in done.error


def test_the_identity_of_a_run_is_kept_and_what_changed_is_said(tmp_path):
    def elsewhere():
        back_to(2, tmp_path / "here", tmp_path / "there")
        folder = tmp_path / "there" / "run" / "checkpoints" / "step_00000002"
        identity = json.loads((tmp_path / "here" / "run" / "identity.json").read_text())
        forge(folder, run_json=facts(folder, identity={**identity, "torch": "2.13.0", "threads": 2, "unknown": 1}))

    here, there = in_turn(Line(tmp_path / "here", SURVIVOR), Line(tmp_path / "there", SURVIVOR, elsewhere))
    assert json.loads((here.run_dir / "identity.json").read_text())["torch"] == torch.__version__
    assert (
        f"note: other than before: torch 2.13.0 -> {torch.__version__}, threads per rank 2 -> 1: the same "
        "rows, but not the same bits\n"
    ) in there.output
    assert there.state["weights_sha256"] == here.state["weights_sha256"]
