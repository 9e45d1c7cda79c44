"""Of all that goes wrong on many ranks, the first cause is shown, once, and kept in status.json."""

import pytest

from tests.launcher.command import TINY, launch


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
