"""Checkpoints are written beside training: what is kept is what was there when it was asked for."""

import errno
import json
import os
import resource
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn

from launcher.checkpoints import store
from launcher.checkpoints.generation import FILES
from launcher.checkpoints.plain import Copies, read_state, snapshot, to_bytes
from launcher.checkpoints.writer import Writer
from launcher.files import Disk
from launcher.training.interval import Interval
from tests.launcher.command import Line, in_turn, launch
from tests.launcher.disks import FullDisk
from tests.launcher.survivor import SURVIVOR, contents, lines_without_speed


def test_a_snapshot_stays_as_it_is_when_tensors_change_right_after():
    model = nn.BatchNorm1d(3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "list": [(torch.ones(2), 1.5)]}
    before = str(read_state("state", to_bytes(state)))
    kept = snapshot("state", state, Copies().of)
    with torch.no_grad():
        for tensor in (*model.state_dict().values(), *optimizer.state[model.weight].values()):
            tensor.fill_(9)
    optimizer.param_groups[0]["lr"] = 7
    assert str(read_state("state", to_bytes(kept))) == before
    assert str(read_state("state", to_bytes(state))) != before


def test_a_snapshot_holds_tied_tensors_once_and_of_views_no_more_than_they_show():
    weight = torch.randn(100, 100)
    kept = snapshot("state", {"a": weight, "b": weight.detach(), "row": weight[3], "none": weight[:0]}, Copies().of)
    assert kept["a"] is kept["b"]
    assert kept["row"].untyped_storage().nbytes() == 400
    assert torch.equal(kept["row"], weight[3])
    assert kept["none"].shape == (0, 100)
    assert len(to_bytes(kept)) < 45_000


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.randn(3, 1).expand(3, 5),
        torch.randn(4, 6)[::2, ::3],
    ],
    ids=["sparse", "channels last", "bf16", "a number", "expanded", "strided"],
)
def test_a_snapshot_of_any_tensor(tensor):
    kept = snapshot("state", [tensor], Copies().of)
    (found,) = read_state("state", to_bytes(kept))
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_a_writer_does_one_piece_after_the_other():
    goes_on, done = threading.Event(), []
    writer = Writer(background=True)
    writer.start(lambda: (goes_on.wait(10) and done.append("first")) or "result")
    assert (writer.is_busy, done) == (True, [])
    assert writer.result(patience_s=0.01) is None
    goes_on.set()
    assert (writer.result(), writer.result(), done) == ("result", None, ["first"])
    writer.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.result()
    assert writer.result() is None
    Writer(background=False).start(lambda: done.append("second"))
    assert done == ["first", "second"]


def slow_disk(seconds):
    """Let the manifest of each generation take so long, and tell when each was written."""
    write = Disk.write

    def slowly(self, path, content):
        if path.name == store.MANIFEST:
            time.sleep(seconds)
        write(self, path, content)

    Disk.write = slowly


def test_a_save_asked_for_while_another_is_written_waits(tmp_path):
    words = (*SURVIVOR, "trainer.log_every=1", "checkpoint.every_steps=2")
    fast, slow = in_turn(Line(tmp_path / "fast", words), Line(tmp_path / "slow", words, partial(slow_disk, 0.1)))
    assert slow.status == 0, slow.error
    assert lines_without_speed(slow) == lines_without_speed(fast)
    assert [folder.name for folder in store.generations(slow.run_dir / "checkpoints")] == [
        f"step_0000000{step}" for step in (6, 4, 2)
    ]
    for folder in store.generations(slow.run_dir / "checkpoints"):
        store.check_whole(folder, FILES)
        other = fast.run_dir / "checkpoints" / folder.name
        assert store.read(folder, "model.pt") == store.read(other, "model.pt")
        assert store.read(folder, "training.pt") == store.read(other, "training.pt")
    assert slow.state["checkpoint_step"] == 6


def test_what_is_kept_beside_training_is_what_is_kept_while_training_waits(tmp_path):
    words = (*SURVIVOR, "checkpoint.every_steps=2")
    beside, waiting = in_turn(
        Line(tmp_path / "beside", words), Line(tmp_path / "waiting", (*words, "checkpoint.background=false"))
    )
    kept = [
        {name: content for name, content in contents(done.run_dir / "checkpoints").items() if name.endswith(".pt")}
        for done in (beside, waiting)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6


@pytest.mark.parametrize("every", [1, 2, 5])
def test_no_failure_costs_more_than_every_steps_also_while_a_slow_disk_is_written_to(tmp_path, every):
    task = "task._target_=tests.launcher.keeping.AtRisk"
    words = (*SURVIVOR, task, f"checkpoint.every_steps={every}", "trainer.epochs=5", "data.test=null")
    beside, waiting = in_turn(
        Line(tmp_path / "beside", words, partial(slow_disk, 0.05)),
        Line(tmp_path / "waiting", (*words, "checkpoint.background=false")),
    )
    for done in (beside, waiting):
        assert kept_steps(done) == sorted({*range(every, 16, every), 15})
        at_risk = [int(steps) for steps in (done.run_dir / "at_risk").read_text().split()]
        assert len(at_risk) == 15
        assert max(at_risk) <= every
    assert max(at_risk) == every  # of the one that waits


def test_a_run_that_fails_waits_for_the_checkpoint_that_is_being_written(tmp_path):
    failing = (*SURVIVOR, "checkpoint.every_steps=4", "model._target_=tests.launcher.parts.FailsOnce")
    done = launch(tmp_path, 1, *failing, before=partial(slow_disk, 1))
    assert done.status == 1
    assert (done.state["state"], done.state["checkpoint_step"]) == ("failed", 4)
    (folder,) = store.generations(done.run_dir / "checkpoints")
    store.check_whole(folder, FILES)


def kept_steps(done):
    return [int(path.name[5:]) for path in sorted((done.run_dir / "checkpoints").iterdir())]


def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(tmp_path):
    words = (*SURVIVOR, "checkpoint.keep=2")
    full = launch(tmp_path / "full", 2, *words, before=FullDisk())
    root = full.run_dir / "checkpoints"
    assert full.status == 2
    assert full.error.startswith(f"error: {root}/step_00000003 was not kept: No space left on device: {root}/.part_")
    assert full.error.endswith(
        "; the newest that was is step_00000002; make room, and give the same hydra.run.dir again to go on\n"
    )
    assert (full.error.count("\n"), kept_steps(full)) == (1, [1, 2])
    assert (full.state["state"], full.state["checkpoint_step"]) == ("failed", 2)
    assert full.state["checkpoint_error"].startswith("No space left on device")
    whole, again = launch(tmp_path / "whole", 2, *words), launch(tmp_path / "full", 2, *words)
    assert lines_without_speed(again) == lines_without_speed(whole)
    assert again.state["weights_sha256"] == whole.state["weights_sha256"]
    assert (again.state["checkpoint_step"], again.state["checkpoint_error"]) == (6, None)


def test_a_run_may_go_on_with_a_full_disk_as_long_as_the_last_checkpoint_is_kept(tmp_path):
    words = (*SURVIVOR, "checkpoint.on_error=warn", "checkpoint.background=false")
    whole, passing, last = in_turn(
        Line(tmp_path / "whole", words),
        Line(tmp_path / "passing", words, FullDisk()),
        Line(tmp_path / "last", words, FullDisk((5, 6))),
    )
    assert passing.status == 0
    warning = f"warning: {passing.run_dir}/checkpoints/step_00000003 was not kept: No space left on device: "
    assert warning in passing.output
    assert passing.output.count("; training goes on, as checkpoint.on_error=warn says\n") == 2
    assert kept_steps(passing) == [1, 2, 5, 6]
    assert lines_without_speed(passing) == lines_without_speed(whole)
    assert (passing.state["checkpoint_step"], passing.state["checkpoint_error"]) == (6, None)
    assert last.status == 2
    assert last.error.startswith(f"error: {last.run_dir}/checkpoints/step_00000006 was not kept: ")
    assert (last.state["state"], last.state["checkpoint_step"]) == ("failed", 4)


def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_system_that_refuses_more_is_told(tmp_path):
    done = launch(
        tmp_path,
        1,
        *SURVIVOR,
        "+data.train.features=200",
        "+model.features=200",
        "data.test=null",
        before=partial(limit_files, 5_000),
    )
    assert done.status == 2
    assert "step_00000001 was not kept: File too large" in done.error
    assert done.error.endswith("; none was kept before; make room, and give the same hydra.run.dir again to go on\n")
    assert kept_steps(done) == []


def no_room():
    Disk.free = lambda _disk, _path: 100_000


def no_permission():
    def refuse(_disk, path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    Disk.make_folder = refuse


def a_file_in_the_way(folder):
    folder.mkdir()
    (folder / "checkpoints").write_text("")


def crowded(steps):
    os.environ["CROWDED"] = steps
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_where_nothing_at_all_can_be_written_for_a_while_nothing_is_missing_in_the_end(tmp_path):
    words = (*SURVIVOR, "model._target_=tests.launcher.parts.Crowded", "trainer.log_every=1")
    at_once = (*words, "checkpoint.background=false")
    whole, passing, stopped, again = in_turn(
        Line(tmp_path / "whole", words, partial(crowded, "")),
        Line(tmp_path / "passing", (*at_once, "checkpoint.on_error=warn"), partial(crowded, "34")),
        Line(tmp_path / "stopped", at_once, partial(crowded, "34")),
        Line(tmp_path / "stopped", words, partial(crowded, "")),
    )
    assert (whole.status, passing.status, stopped.status, again.status) == (0, 0, 2, 0)
    assert passing.output.count(f"warning: {passing.run_dir} cannot be written: File too large; it is tried again") == 1
    for done in (passing, again):
        assert lines_without_speed(done) == lines_without_speed(whole)
        assert done.state["weights_sha256"] == whole.state["weights_sha256"]
        assert done.state["checkpoint_error"] is None
        assert not list(done.run_dir.glob(".status.json.*"))


def test_a_run_that_could_keep_nothing_does_not_begin(tmp_path):
    blocked, full, locked = in_turn(
        Line(tmp_path / "blocked", SURVIVOR, lambda: a_file_in_the_way(tmp_path / "blocked" / "run")),
        Line(tmp_path / "full", SURVIVOR, no_room),
        Line(tmp_path / "locked", SURVIVOR, no_permission),
    )
    full_disk = "no space: 1.0 MB are needed, 0.1 MB are free: "
    for done, reason in ((blocked, "Not a directory"), (full, full_disk), (locked, "Permission denied: ")):
        place = f"error: hydra.run.dir={done.run_dir}: no checkpoint can be written to {done.run_dir}/checkpoints: "
        assert done.status == 2
        assert done.error.startswith(place + reason), done.error
        assert done.error.count("error: ") == 1
        assert not (done.run_dir / "metrics.jsonl").exists()


def test_the_names_of_folders_are_on_the_disk_before_what_is_in_them(tmp_path):
    made = []

    class Noting(Disk):
        def make_folder(self, path):
            made.append(("made", path))
            super().make_folder(path)

        def sync(self, path):
            made.append(("synced", path))
            super().sync(path)

    store.save(tmp_path / "new" / "checkpoints", 1, {}, Noting())
    assert made[:4] == [
        ("made", tmp_path / "new"),
        ("synced", tmp_path),
        ("made", tmp_path / "new" / "checkpoints"),
        ("synced", tmp_path / "new"),
    ]


def best_of(done):
    facts = [
        json.loads((folder / "run.json").read_text()) for folder in store.generations(done.run_dir / "checkpoints")
    ]
    return {found["step"]: found["best"] for found in facts}


def test_the_checkpoint_of_the_best_evaluation_stays_also_over_a_restart(tmp_path):
    words = (*SURVIVOR, "trainer.epochs=4", "checkpoint.keep=1", "checkpoint.every_steps=null", "optimizer.lr=0.5")
    by_loss = (*words, "checkpoint.keep_best=-test/loss")
    once, _, again, other = in_turn(
        Line(tmp_path / "once", by_loss),
        Line(tmp_path / "again", (*by_loss, "trainer.max_steps=7")),
        Line(tmp_path / "again", by_loss),
        Line(
            tmp_path / "other",
            (*words, "checkpoint.keep_best=accuracy", f"checkpoint.resume={tmp_path}/once/run", "trainer.epochs=5"),
        ),
    )
    losses = {line["step"]: line["test/loss"] for line in once.metrics if "test/loss" in line}
    best = min(losses, key=losses.get)
    assert best < 12
    for done in (once, again):
        assert best_of(done)[12] == {"metric": "-loss", "value": losses[best], "step": best}
        assert sorted(best_of(done)) == [best, 12]
    assert best_of(other) == {15: {"metric": "accuracy", "value": other.values("test/accuracy")[-1], "step": 15}}


def test_best_after_a_run_folder_names_the_checkpoint_of_its_best_evaluation(tmp_path):
    words = (*SURVIVOR, "trainer.epochs=3", "checkpoint.every_steps=null", "optimizer.lr=0.5")
    run, other = tmp_path / "a" / "run", tmp_path / "b" / "run"
    trained, _, loaded, resumed, none, nowhere = in_turn(
        Line(run.parent, (*words, "checkpoint.keep=1", "checkpoint.keep_best=-loss")),
        Line(other.parent, (*words, "trainer.max_steps=1")),
        Line(tmp_path / "c", (*words, "mode=evaluate", f"checkpoint.load={run}/best")),
        Line(tmp_path / "d", (*words, f"checkpoint.resume={run}/best")),
        Line(tmp_path / "e", (*words, f"checkpoint.load={other}/best")),
        Line(tmp_path / "f", (*words, "checkpoint.load=best")),
    )
    losses = {line["step"]: line["test/loss"] for line in trained.metrics if "test/loss" in line}
    best = min(losses, key=losses.get)
    assert best < 9
    assert loaded.values("test/loss") == [losses[best]]
    assert f"resumed from     {run}/checkpoints/step_{best:08d}: step {best}, " in resumed.output
    assert none.error == (
        f"error: checkpoint.load={other}/best: no best evaluation is kept in {other}; checkpoint.keep_best keeps one\n"
    )
    assert nowhere.error == f"error: checkpoint.load={tmp_path}/f/best: there is no such file or folder\n"


def test_checkpoints_by_the_clock_are_kept_after_the_same_step_on_all_ranks(tmp_path):
    words = (*SURVIVOR, "model._target_=tests.launcher.parts.Slow", "data.test=null")
    done = launch(tmp_path / "clock", 2, *words, "checkpoint.every_steps=null", "checkpoint.every_seconds=0.2")
    assert done.status == 0, done.error
    assert 3 <= len(kept_steps(done)) <= 6
    auto, ends = in_turn(
        Line(tmp_path / "auto", (*words, "checkpoint.every_steps=auto")),
        Line(tmp_path / "ends", (*words, "checkpoint.every_steps=null")),
    )
    assert kept_steps(auto) == kept_steps(ends) == [6]


def test_the_interval_follows_the_time_of_saving():
    auto, by_clock, never = Interval(None, 14_400), Interval(30, 14_400), Interval()
    for interval in (auto, by_clock, never):
        interval.saved(waited_s=2.0, write_s=60.0)
    assert (auto.seconds, by_clock.seconds, never.seconds) == (240, 30, None)
    assert Interval(None, 14_400).seconds == 10
    auto.saved(waited_s=0.0, write_s=60.0)
    assert auto.seconds == 60, "one is written at a time"


WRONG = {
    "checkpoint.every_steps=often": "checkpoint.every_steps=often is no number of steps; or set auto or null",
    "checkpoint.every_steps=2.5": "checkpoint.every_steps=2.5 is no number of steps; or set auto or null",
    "checkpoint.every_seconds=0": "checkpoint.every_seconds=0.0 is too small: the least is 0.1",
    "checkpoint.expected_failure_s=0": "checkpoint.expected_failure_s=0.0 is too small: the least is 1",
    "checkpoint.on_error=ignore": "checkpoint.on_error=ignore is not one of stop, warn",
    "checkpoint.keep_best=acuracy": "acuracy is not evaluated; did you mean 'accuracy'?",
    "checkpoint.keep_best=test/loss": "takes the highest loss for the best; set checkpoint.keep_best=-loss",
    "checkpoint.keep_best=accuracy data.test=null": "nothing is evaluated without data.test",
    "checkpoint.keep_best=-loss trainer.evaluate_every=0": "",
    "trainer.patience=0": "trainer.patience=0 is too small: the least is 1",
    "trainer.patience=2 data.test=null": "trainer.patience=2: nothing is evaluated without data.test",
    "trainer.patience=2 trainer.evaluate_every=0": "trainer.patience=2 waits for evaluations, and ",
}


def test_wrong_settings_of_what_is_kept(tmp_path):
    found = in_turn(*(Line(tmp_path / str(n), (*SURVIVOR, *wrong.split())) for n, wrong in enumerate(WRONG)))
    for (wrong, message), done in zip(WRONG.items(), found, strict=True):
        assert done.status == (2 if message else 0), wrong
        assert message in done.error
