"""Of all that goes wrong on many ranks, the first cause is shown, once, and kept in status.json."""

import json
import os
import resource
import sys

import pytest

from launcher.processes.failures import Failure, tell_torchrun
from launcher.testing import simulate
from launcher.training.finite import NonFiniteError
from tests.launcher.command import CONFIGS, TINY, launch
from tests.launcher.test_torchrun import end, start

SURVIVOR = (f"--config-dir={CONFIGS}", "experiment=survivor")


def test_an_error_on_one_rank_ends_all_and_is_shown_once(tmp_path):
    done = launch(tmp_path, 3, *TINY, "model._target_=tests.launcher.parts.FailsOnRankOne")
    assert done.statuses == [1, 1, 1]
    assert done.error.count("Traceback") == 1
    assert done.error.endswith("ValueError: rank 1 has had enough\nerror: rank 1: ValueError: rank 1 has had enough\n")
    assert done.errors[1] == done.error
    assert done.state["state"] == "failed"
    assert done.state["error"] == {"rank": 1, "type": "ValueError", "message": "rank 1 has had enough"}
    assert "ValueError: rank 1 has had enough" in done.log(1)


def test_of_two_errors_the_earlier_is_the_cause(tmp_path):
    done = launch(tmp_path, 2, *TINY, "model._target_=tests.launcher.parts.FailsInTurn")
    assert done.statuses == [1, 1]
    assert done.errors[0] == ""
    assert done.errors[1].endswith("error: rank 1: ValueError: the cause\n")
    assert done.state["error"] == {"rank": 1, "type": "ValueError", "message": "the cause"}
    assert "KeyError: 'a consequence'" in done.log(0)


@pytest.mark.parametrize(
    "words",
    ["optimzer.lr=1", "model.in_features=5", "model._target_=tests.launcher.parts.FailsOnRankOne"],
    ids=["composed", "built", "own code"],
)
def test_an_error_that_every_restart_meets_again_is_told_once(tmp_path, words):
    done = launch(tmp_path, 2, *TINY, words, times=3)
    assert done.status in (1, 2)
    assert done.error.count("error: ") == 1


def test_a_restart_does_not_try_again_what_failed_in_the_first_step(tmp_path):
    done = launch(tmp_path, 1, *SURVIVOR, "model._target_=tests.launcher.parts.FailsAlways", times=3)
    assert done.status == 1
    assert done.error.count("error: rank 0: ValueError: once more\n") == 1
    assert len((done.run_dir / "ledger_0").read_text().splitlines()) == 1


def test_a_restart_tries_again_what_failed_after_a_step(tmp_path):
    words = ("model._target_=tests.launcher.parts.FailsAlways", "+model.step=2", "checkpoint.every_steps=null")
    done = launch(tmp_path, 1, *SURVIVOR, *words, times=3)
    assert done.status == 1
    assert len((done.run_dir / "ledger_0").read_text().splitlines()) == 6


def test_the_own_launcher_restarts_ranks_that_failed(tmp_path):
    words = (*SURVIVOR, "hydra.run.dir=run", "model._target_=tests.launcher.parts.FailsOnce")
    own = [sys.executable, "-m", "launcher", *words, "launch.processes=1", "launch.max_restarts=1"]
    status, _, error = end(start(tmp_path, own))
    assert status == 0, error
    state = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (state["state"], state["step"], state["restarts"]) == ("finished", 6, 1)


def test_of_a_message_of_many_lines_the_first_is_repeated_below_the_traceback():
    long = Failure.of(RuntimeError("sizes differ:\n  a is 3\n  b is 4"), 3)
    assert long.words.endswith("  b is 4\nerror: rank 3: RuntimeError: sizes differ: [...]")
    assert long.message == "sizes differ:\n  a is 3\n  b is 4"
    plain = Failure.of(NonFiniteError("one\ntwo"), 3)
    assert plain.words == "error: rank 3: NonFiniteError: one\ntwo"


def test_a_full_disk_leaves_no_half_of_a_word_for_torchrun(tmp_path):
    def tell():
        os.environ["TORCHELASTIC_ERROR_FILE"] = str(tmp_path / "error.json")
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="File too large"):
            tell_torchrun(Failure.of(ValueError("why"), 0))

    simulate(1, tell, process_group=False)
    assert list(tmp_path.iterdir()) == []
