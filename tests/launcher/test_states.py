"""Whatever task, loss and model keep beside weights is part of a checkpoint."""

import enum
from collections import namedtuple

import pytest
import torch
from torch import nn

from launcher.checkpoints.generation import Snapshots, check_restorable
from launcher.checkpoints.plain import Copies, read_state, snapshot, to_bytes
from launcher.checkpoints.stateful import UnsavedBuffers, put_states, snapshot_states, stateful
from launcher.processes.errors import SettingsError
from tests.launcher.command import Line, in_turn
from tests.launcher.keeping import Drifting
from tests.launcher.survivor import SURVIVOR, back_to, lines_without_speed

FOLLOWING = "task._target_=tests.launcher.keeping.Following"
HARDENING = "loss._target_=tests.launcher.keeping.Hardening"
DRIFTING = "model._target_=tests.launcher.keeping.Drifting"


def whole_resumed_evaluated(folder, *words):
    """A run, the same killed after four steps and continued, and an evaluation of what it kept."""
    whole, again = Line(folder / "whole", (*SURVIVOR, *words)), folder / "again"
    evaluate = (*whole.words, "mode=evaluate", "checkpoint.load=../whole/run")
    return (
        whole,
        Line(again, whole.words, lambda: back_to(4, whole.folder, again)),
        Line(folder / "evaluated", evaluate),
    )


def test_what_task_loss_and_model_keep_comes_back_after_a_kill_and_in_evaluation(tmp_path):
    parts, buffers = (FOLLOWING, HARDENING), (DRIFTING,)
    lines = [
        *whole_resumed_evaluated(tmp_path / "parts", *parts),
        *whole_resumed_evaluated(tmp_path / "buffers", *buffers),
    ]
    otherwise = Line(tmp_path / "parts" / "otherwise", (*lines[2].words, "+task.decay=0.9"))
    *found, other = in_turn(*lines, otherwise)
    for done, resumed, evaluated in (found[:3], found[3:]):
        for each in (done, resumed, evaluated):
            assert each.status == 0, each.error
        assert lines_without_speed(resumed) == lines_without_speed(done)
        assert resumed.state["weights_sha256"] == done.state["weights_sha256"]
        assert evaluated.values("test/loss") == done.values("test/loss")[-1:]
        assert "note: checkpoint.load" not in evaluated.output
    assert other.values("test/loss") != found[2].values("test/loss")
    assert "step_00000006 keeps no state of this task, which is evaluated as it was built\n" in other.output


def test_a_state_that_cannot_be_kept_or_restored_is_told_by_name(tmp_path):
    def resumed(folder, *words):
        return Line(tmp_path / folder, (*SURVIVOR, *words), lambda: back_to(4, tmp_path / "plain", tmp_path / folder))

    _, _, one_way, late, new, gone, misfit, harder = in_turn(
        Line(tmp_path / "plain", SURVIVOR),
        Line(tmp_path / "kept", (*SURVIVOR, FOLLOWING, HARDENING, "trainer.max_steps=4")),
        Line(tmp_path / "one_way", (*SURVIVOR, "task._target_=tests.launcher.keeping.OneWay")),
        Line(tmp_path / "late", (*SURVIVOR, "task._target_=tests.launcher.keeping.Unkeepable")),
        resumed("new", FOLLOWING),
        Line(tmp_path / "kept", (*SURVIVOR, HARDENING)),
        Line(tmp_path / "kept", (*SURVIVOR, "task._target_=tests.launcher.keeping.Forgetful")),
        Line(tmp_path / "kept", (*SURVIVOR, FOLLOWING, HARDENING, "+loss.rate=1.2")),
    )
    remedy = "; give the settings and code of that run, or begin one with its weights by checkpoint.load\n"
    told = [
        (one_way, "error: task: OneWay has state_dict() and no load_state_dict(); add it, or leave out both\n"),
        (late, "error: task['seen']: a checkpoint cannot keep builtins.generator: "),
        (new, "step_00000004: task has a state here, and none is kept there", remedy),
        (gone, "step_00000004: a state of task is kept there, task has none here", remedy),
        (misfit, "the state of task does not fit task here: KeyError: 'count' (", "keeping.py:", remedy),
    ]
    for done, *parts in told:
        assert (done.status, "Traceback" in done.error) == (2, False), done.error
        assert all(part in done.error for part in parts), done.error
    assert harder.status == 0, harder.error
    assert "loss.rate unset -> 1.2" in harder.output
    states = torch.load(harder.run_dir / "checkpoints" / "step_00000006" / "states.pt", weights_only=True)
    assert float(states["loss"]["hardness"]) == pytest.approx(1.2**2)
    assert int(states["task"]["n_averaged"]) == 6


def test_buffers_that_a_state_dict_leaves_out():
    model, other = Drifting(), Drifting()
    model.latest, model.drift = torch.ones(1, 3), torch.ones(3)
    buffers, place = UnsavedBuffers(model), other.drift
    state = snapshot_states(stateful(buffers=buffers, loss=nn.functional.mse_loss), Copies().of)
    put_states("there", state, {"buffers": UnsavedBuffers(other)})
    assert other.drift is place
    assert torch.equal(other.drift, model.drift)
    assert torch.equal(other.latest, model.latest)
    assert other.state_dict().keys() == Drifting().state_dict().keys()
    assert snapshot_states({"buffers": UnsavedBuffers(nn.Linear(2, 2))}, Copies().of) == {}
    with pytest.raises(
        SettingsError, match=r"^there: the state of buffers does not fit .*: 'no value of latest'; give"
    ):
        put_states("there", {"buffers": {"drift": torch.ones(3)}}, {"buffers": UnsavedBuffers(other)})


def test_a_state_is_a_mapping():
    task = nn.Module()
    task.state_dict = lambda: [1]
    with pytest.raises(SettingsError, match=r"^task: state_dict\(\) gives list; let it give a mapping$"):
        snapshot_states({"task": task}, Copies().of)


class Rows(list):
    """A list of a user's own."""


Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - as users write it
Kind = enum.Enum("Kind", ["A"])


class OwnTensor(torch.Tensor):
    """A tensor of a user's own."""


def test_lists_and_tuples_of_any_kind_are_kept_as_plain_ones_and_keys_must_be_plain():
    state = {"rows": Rows([1, Pair(2, "x")]), (1, "a"): torch.Size([3])}
    kept = read_state("there", to_bytes(snapshot("task", state, Copies().of)))
    assert kept == {"rows": [1, (2, "x")], (1, "a"): torch.Size([3])}
    assert [type(kept["rows"]), type(kept["rows"][1])] == [list, tuple]
    with pytest.raises(SettingsError, match=r"^task\['kinds'\]: a checkpoint cannot keep .*\.test_states\.Kind: "):
        snapshot("task", {"kinds": {Kind.A: 1}}, Copies().of)


def test_a_state_that_could_not_be_read_back_is_refused_by_name():
    model = {"weight": torch.ones(2)}
    check_restorable(Snapshots(model, {"optimizer": {"state": {0: {"step": 1}}}}, {"task": {}}))
    with pytest.raises(SettingsError, match=r"^task: a checkpoint could not be restored: "):
        check_restorable(Snapshots(model, {}, {"task": {"own": torch.ones(2).as_subclass(OwnTensor)}}))
