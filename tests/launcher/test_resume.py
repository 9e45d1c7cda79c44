"""A run that was stopped anywhere and continued ends as if it had never been stopped."""

from functools import partial

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.observe.meter import MEASURED
from launcher.observe.status import Status, write_status
from launcher.testing import RankError
from tests.launcher.command import Line, in_turn, launch
from tests.launcher.survivor import SURVIVOR, back_to, ledger, lines_without_speed

RUNS = {
    "drop": (),
    "pad": ("batch.tail=pad",),
    "pad, counted": ("batch.tail=pad", "batch.pad_weight=1"),
    "spread": ("batch.tail=spread",),
    "carry": ("batch.tail=carry",),
    "micro-batches": ("batch.max_per_device=4",),
    "adaptive": ("optimizer=adamw", "scheduler=one_cycle", "trainer.clip_norm=0.5"),
    "exact": ("batch.exact=true", "batch.shard_rows=2"),
    "averages and counters": ("model._target_=tests.launcher.parts.Averages",),
    "half": ("trainer.precision=fp16",),
    "rare": ("trainer.log_every=5", "trainer.evaluate_every=2"),
}


SPEED = ("train/rows_per_s", "hp_metric", *MEASURED)


def scalars(done):
    """The points of TensorBoard that count."""
    events = EventAccumulator(str(done.run_dir / "tensorboard"))
    events.Reload()
    names = sorted(name for name in events.Tags()["scalars"] if not name.startswith(SPEED))
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in names}


def speed(done):
    return {"train/rows_per_s": done.state["metrics"]["train/rows_per_s"]}


def stopped_after(steps, folder, *words):
    """A whole run, and those that were stopped after each of ``steps`` and continued."""
    whole = Line(folder / "whole", (*SURVIVOR, *words))
    again = {step: folder / str(step) for step in steps}
    return in_turn(
        whole, *(Line(path, whole.words, partial(back_to, step, whole.folder, path)) for step, path in again.items())
    )


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_run_that_is_stopped_after_any_step_ends_as_if_it_were_not(tmp_path, words):
    steps = range(1, 6)
    whole, *continued = stopped_after(steps, tmp_path, *words)
    assert whole.status == 0, whole.error
    micro_batches = ledger(whole.folder, 1)
    for step, done in zip(steps, continued, strict=True):
        assert done.status == 0, done.error
        assert lines_without_speed(done) == lines_without_speed(whole), step
        assert ledger(done.folder, 1) == micro_batches[step * len(micro_batches) // whole.state["step"] :], step
        assert done.state == {**whole.state, "metrics": {**whole.state["metrics"], **speed(done)}}
        assert scalars(done) == scalars(whole)


def test_rows_that_workers_drew_ahead_are_not_lost(tmp_path):
    whole, again = stopped_after([2], tmp_path, "data.workers=2", "data.test=null")
    assert (whole.status, again.status) == (0, 0), again.error
    assert ledger(again.folder, 1) == ledger(whole.folder, 1)[2:]
    assert again.state["weights_sha256"] == whole.state["weights_sha256"]


def test_as_many_ranks_continue_to_the_same_bits_and_others_on_the_same_rows(tmp_path):
    words = (*SURVIVOR, "task._target_=tests.launcher.keeping.Following")
    one, two = (launch(tmp_path / str(ranks), ranks, *words) for ranks in (1, 2))
    back_to(2, two.folder, tmp_path / "again")
    again = launch(tmp_path / "again", 2, *words)
    assert again.state["weights_sha256"] == two.state["weights_sha256"]
    assert lines_without_speed(again) == lines_without_speed(two)
    back_to(2, two.folder, tmp_path / "other")
    launch(tmp_path / "other", 3, *words, "trainer.max_steps=4")
    middle = ledger(tmp_path / "other", 3)
    for rank in range(3):
        (tmp_path / "other" / "run" / f"ledger_{rank}").unlink()
    other = launch(tmp_path / "other", 1, *words)
    assert other.status == 0, other.error
    assert ledger(two.folder, 2)[:2] + middle + ledger(other.folder, 1) == ledger(one.folder, 1)
    assert "note: other than before: ranks 3 -> 1: the same rows, but not the same bits\n" in other.output


def test_in_exact_mode_any_number_of_ranks_continues_to_the_same_bits(tmp_path):
    words = (*SURVIVOR, "batch.exact=true", "batch.shard_rows=2", "trainer.log_every=4")
    one = launch(tmp_path / "one", 1, *words)
    launch(tmp_path / "other", 2, *words, "trainer.max_steps=2")
    launch(tmp_path / "other", 3, *words, "trainer.max_steps=3")
    other = launch(tmp_path / "other", 1, *words)
    assert other.state["weights_sha256"] == one.state["weights_sha256"]
    ends = [line for line in lines_without_speed(other) if line["step"] > 3]
    assert ends == [line for line in lines_without_speed(one) if line["step"] > 3]
    assert "identity" not in other.output


def test_a_run_that_is_stopped_again_and_again_within_an_epoch(tmp_path):
    whole = Line(tmp_path / "whole", SURVIVOR)
    again = [Line(tmp_path / "again", (*SURVIVOR, f"trainer.max_steps={step}")) for step in (1, 2, 4, 5)]
    one, *_, other = in_turn(whole, *again, Line(tmp_path / "again", SURVIVOR))
    assert ledger(other.folder, 1) == ledger(one.folder, 1)
    assert other.state["weights_sha256"] == one.state["weights_sha256"]


def test_a_rank_that_is_killed_costs_the_steps_since_the_last_checkpoint(tmp_path):
    words = (*SURVIVOR, "checkpoint.every_steps=3", "checkpoint.background=false")
    killed = (*words, "model._target_=tests.launcher.parts.Killed")
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        launch(tmp_path / "killed", 2, *killed)
    again = launch(tmp_path / "killed", 2, *killed)
    whole = launch(tmp_path / "whole", 2, *words)
    assert again.state["weights_sha256"] == whole.state["weights_sha256"]
    assert lines_without_speed(again) == lines_without_speed(whole)
    assert scalars(again) == scalars(whole)
    assert f"resumed from     {again.run_dir}/checkpoints/step_00000003: step 3, epoch 1, 24 rows\n" in again.output


def test_an_elastic_restart_continues_in_the_same_folder(tmp_path):
    words = (*SURVIVOR, "checkpoint.every_steps=3")
    whole = launch(tmp_path / "whole", 2, *words)
    again = launch(tmp_path / "again", 2, *words, "model._target_=tests.launcher.parts.FailsOnce", times=2)
    assert again.status == 0, again.error
    assert again.state == {**whole.state, "restarts": 1, "metrics": {**whole.state["metrics"], **speed(again)}}
    assert lines_without_speed(again) == lines_without_speed(whole)


def test_a_rule_that_held_ends_the_run_also_when_it_was_killed_before_it_could_tell(tmp_path):
    def killed():
        back_to(3, tmp_path / "first", tmp_path / "killed")
        write_status(tmp_path / "killed" / "run", Status(step=3))

    rule = "trainer.stop_when='loss <= 1000'"
    first, killed_then, went_on = in_turn(
        Line(tmp_path / "first", (*SURVIVOR, rule)),
        Line(tmp_path / "killed", (*SURVIVOR, rule), killed),
        Line(tmp_path / "killed", (*SURVIVOR, "trainer.stop_when='loss <= -1'")),
    )
    assert (first.state["state"], first.state["step"]) == ("stopped", 3)
    assert killed_then.output.endswith(f"stopped after 3 steps and 24 rows; run folder {killed_then.run_dir}\n")
    assert went_on.output.endswith(f"finished after 6 steps and 48 rows; run folder {went_on.run_dir}\n")


def test_patience_that_was_spent_in_part_is_spent_when_the_run_is_continued(tmp_path):
    def killed(step, name):
        back_to(step, tmp_path / "whole", tmp_path / name)

    words = (*SURVIVOR, "trainer.epochs=9", "optimizer.lr=8", "trainer.patience=3")
    whole, *resumed, longer = in_turn(
        Line(tmp_path / "whole", words),
        *(Line(tmp_path / str(step), words, partial(killed, step, str(step))) for step in (4, 6, 10, 12)),
        Line(tmp_path / "longer", (*words, "trainer.patience=4"), partial(killed, 12, "longer")),
    )
    losses = whole.values("test/loss")
    assert min(losses) == losses[0]
    why = f"trainer.patience=3: nothing better in 3 evaluations than loss {losses[0]:.4f} after step 3\n"
    for done in (whole, *resumed):
        assert (done.state["state"], done.state["step"]) == ("stopped", 12)
        assert lines_without_speed(done) == lines_without_speed(whole)
    assert all(why in done.output for done in (whole, *resumed[:-1]))
    assert (longer.state["state"], longer.state["step"]) == ("stopped", 15)


def test_an_end_that_lies_where_the_run_continues_is_evaluated(tmp_path):
    def stopped():
        back_to(2, tmp_path / "whole", tmp_path / "stopped")

    words = (*SURVIVOR, "trainer.log_every=3")
    wanted, _, done = in_turn(
        Line(tmp_path / "wanted", (*words, "trainer.max_steps=2")),
        Line(tmp_path / "whole", words),
        Line(tmp_path / "stopped", (*words, "trainer.max_steps=2"), stopped),
    )
    assert lines_without_speed(done) == lines_without_speed(wanted)
    assert done.state["weights_sha256"] == wanted.state["weights_sha256"]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    words = (*SURVIVOR, "checkpoint.every_steps=null", "trainer.log_every=1")
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        launch(tmp_path, 2, *words, "model._target_=tests.launcher.parts.Killed")
    again = launch(tmp_path, 2, *words)
    assert again.status == 0, again.error
    assert "note: no checkpoint was kept here: the run begins anew\n" in again.output
    assert [line["step"] for line in again.metrics if "train/loss" in line] == [1, 2, 3, 4, 5, 6]
