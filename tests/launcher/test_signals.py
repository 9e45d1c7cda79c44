"""A run that is asked to end stops after the same step on all ranks, keeps everything, and goes on from there."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher import prepare
from launcher.checkpoints import store
from launcher.processes import signals
from launcher.testing import simulate
from launcher.training.agree import Agreement, Decision
from tests.launcher.command import CONFIGS, launch
from tests.launcher.test_resume import lines_without_speed
from tests.launcher.test_torchrun import end, start, torchrun

SURVIVOR = (f"--config-dir={CONFIGS}", "experiment=survivor")
ENDLESS = (
    *SURVIVOR,
    "checkpoint.every_steps=null",
    "trainer.epochs=100000",
    "trainer.evaluate_every=0",
    "trainer.log_every=1000",
    "data.test=null",
)
PATIENCE_S = 60.0


def signalled(numbers="SIGTERM", rank=None, step=3, workers_too=False):
    node = {"numbers": numbers, "rank": rank, "step": step, "workers_too": workers_too}
    settings = (f"+model.{name}={json.dumps(value)}" for name, value in node.items())
    return ("model._target_=tests.launcher.parts.Signalled", *settings)


def steps_of(run_dir):
    """The steps that each rank did."""
    return [len(path.read_text().splitlines()) for path in sorted(run_dir.glob("ledger_*"))]


def kept_after(run_dir):
    return [int(path.name[5:]) for path in sorted(store.generations(run_dir / "checkpoints"))]


def evaluations_kept(run_dir):
    """What each generation knows of evaluations, oldest first."""
    folders = sorted(store.generations(run_dir / "checkpoints"))
    facts = [json.loads((folder / "run.json").read_text()) for folder in folders]
    return [(found["step"], found["results"], found["best"]) for found in facts]


def state_of(run_dir):
    return json.loads((run_dir / "status.json").read_text())


def check_preempted(run_dir, ranks):
    """All stopped after one step, which was kept and told; returns that step."""
    state = state_of(run_dir)
    assert (state["state"], state["error"]) == ("preempted", None)
    assert steps_of(run_dir) == [state["step"]] * ranks
    assert kept_after(run_dir)[-1] == state["step"]
    return state["step"]


def wait_for(condition, patience_s=PATIENCE_S):
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def catches(process, number):
    """Whether a process has a handler of its own for a signal."""
    facts = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in facts if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def trains(run_dir, ranks=1):
    """Whether each of ``ranks`` has done a few steps."""
    return len(found := steps_of(run_dir)) == ranks and min(found) >= 3


@pytest.mark.parametrize(
    ("numbers", "ranks", "rank", "by"),
    [
        ("SIGTERM", 2, 1, "SIGTERM on rank 1"),
        ("SIGUSR1", 2, 0, "SIGUSR1 on rank 0"),
        ("SIGINT", 3, None, "SIGINT on rank 2"),
        ("SIGHUP", 1, 0, "SIGHUP on rank 0"),
        ("SIGTERM+SIGTERM+SIGINT", 2, 1, "SIGTERM on rank 1"),
    ],
)
def test_all_ranks_stop_after_the_same_step_and_keep_it(tmp_path, numbers, ranks, rank, by):
    done = launch(tmp_path, ranks, *ENDLESS, *signalled(numbers, rank))
    assert done.status == 75, done.error
    step = check_preempted(done.run_dir, ranks)
    assert kept_after(done.run_dir) == [step]
    assert step < 1000
    assert f"preempted by {by} after step {step}; continue with the same hydra.run.dir: {done.run_dir}\n" in done.output
    assert done.error == ""


def test_loader_workers_are_signalled_too_and_the_run_is_kept(tmp_path):
    done = launch(tmp_path, 2, *ENDLESS, *signalled(workers_too=True), "data.workers=2")
    assert done.status == 75, done.error
    check_preempted(done.run_dir, 2)


@pytest.mark.parametrize("step", [2, 3, 6], ids=["amid an epoch", "before an evaluation", "at the end"])
def test_a_run_that_was_preempted_ends_as_if_it_were_not(tmp_path, step):
    words = (*SURVIVOR, "checkpoint.keep_best=-loss")
    whole = launch(tmp_path / "whole", 1, *words, *signalled(step=99))
    first = launch(tmp_path / "again", 1, *words, *signalled(step=step))
    assert first.status == 75
    assert check_preempted(first.run_dir, 1) == step
    again = launch(tmp_path / "again", 1, *words, *signalled(step=step))
    assert again.status == 0, again.error
    assert evaluations_kept(again.run_dir) == evaluations_kept(whole.run_dir)
    assert lines_without_speed(again) == lines_without_speed(whole)
    assert again.state["weights_sha256"] == whole.state["weights_sha256"]


def test_an_evaluation_is_given_up_and_made_up_for(tmp_path):
    words = (*SURVIVOR, "data.evaluate_batch=1", "model._target_=tests.launcher.parts.SignalledInEvaluation")
    first = launch(tmp_path / "again", 2, *words)
    assert first.status == 75, first.error
    assert check_preempted(first.run_dir, 2) == 3
    assert "preempted by SIGTERM on rank 1 after step 3" in first.output
    again = launch(tmp_path / "again", 2, *words)
    whole = launch(tmp_path / "whole", 2, *SURVIVOR, "data.evaluate_batch=1")
    assert lines_without_speed(again) == lines_without_speed(whole)
    assert again.state["weights_sha256"] == whole.state["weights_sha256"]


def test_a_restart_leaves_a_preempted_run_alone(tmp_path):
    done = launch(tmp_path, 2, *ENDLESS, *signalled(), times=3)
    assert done.status == 75, done.error
    check_preempted(done.run_dir, 2)
    assert (done.output.count("preempted by"), done.state["restarts"]) == (1, 0)


def test_a_signal_in_the_last_step_changes_nothing_where_nothing_is_left_to_do(tmp_path):
    done = launch(tmp_path, 1, *SURVIVOR, *signalled(step=6), "data.test=null")
    assert done.status == 0, done.error
    assert done.state["state"] == "finished"


def test_a_second_signal_stops_at_once(tmp_path):
    def impatient():
        signals.SAME_S = 0.0

    done = launch(tmp_path, 2, *ENDLESS, *signalled("SIGINT+SIGTERM", rank=1), before=impatient)
    assert done.statuses == [1, 1]
    assert done.state["error"]["type"] == "Terminated"
    assert (
        done.error == "error: rank 1: Terminated: stopped at once by SIGTERM, a second signal after SIGINT on rank 1\n"
    )
    assert kept_after(done.run_dir) == []


def test_the_first_signal_of_a_rank_is_not_a_second_one_after_the_wish_of_another_rank(monkeypatch):
    monkeypatch.setattr(signals, "SAME_S", 0.0)
    others, heard = signals.Wish("SIGTERM", 1), signals.Signals(0)
    heard.note(others)
    with heard.noted():
        heard._hear(signal.SIGTERM, None)
        with pytest.raises(signals.Terminated, match="by SIGINT, a second signal after SIGTERM on rank 0"):
            heard._hear(signal.SIGINT, None)
    assert heard.wish == others


def test_a_signal_before_the_first_step_ends_all_ranks_and_loses_nothing(tmp_path):
    done = launch(tmp_path, 2, *ENDLESS, "model._target_=tests.launcher.parts.SignalledWhenBuilt")
    assert done.status == 75, done.error
    assert done.state["state"] == "preempted"
    assert done.error == "preempted by SIGTERM on rank 1 before the first step: nothing is lost\n"


def test_a_signal_while_rank_zero_composes_ends_all_ranks(tmp_path):
    def signalled_when_composing():
        prepare._prepare = lambda *_: os.kill(os.getpid(), signal.SIGINT)

    done = launch(tmp_path, 2, *ENDLESS, before=signalled_when_composing)
    assert done.status == 75
    assert done.error == "preempted by SIGINT before the run began\n"


def test_an_idle_rank_tells_the_others_of_its_signal(tmp_path):
    def signal_when_others_train():
        def wait():
            wait_for(lambda: trains(tmp_path / "run", ranks=2))
            os.kill(os.getpid(), signal.SIGTERM)

        if os.environ["RANK"] == "2":
            threading.Thread(target=wait).start()

    done = launch(tmp_path, 3, *ENDLESS, "batch.min_per_device=4", before=signal_when_others_train)
    assert done.status == 75, done.error
    check_preempted(done.run_dir, 2)
    assert "preempted by SIGTERM on rank 2 after step" in done.output


def test_launchers_pass_signals_on(tmp_path):
    words = (*ENDLESS, "hydra.run.dir=run")
    by_torchrun = start(tmp_path / "torchrun", torchrun(*words, "data.workers=1"))
    words = (*words, "launch.processes=1", "launch.max_restarts=1")
    own = start(tmp_path / "own", [sys.executable, "-m", "launcher", *words])
    for process, number in ((by_torchrun, signal.SIGTERM), (own, signal.SIGUSR1)):
        folder = tmp_path / ("own" if process is own else "torchrun") / "run"
        wait_for(lambda folder=folder, ranks=1 if process is own else 2: trains(folder, ranks))
        process.send_signal(number)
    status, _, error = end(own)
    assert status == 75, error
    assert error == ""
    check_preempted(tmp_path / "own" / "run", 1)
    status, _, error = end(by_torchrun)
    assert status == 1, error
    check_preempted(tmp_path / "torchrun" / "run", 2)


def test_ranks_agree_four_times_a_second_on_a_wish_and_on_the_clock_of_rank_zero():
    def agree():
        rank, step = int(os.environ["RANK"]), 0
        wish = signals.Wish("SIGTERM", 1)
        agreement = Agreement(
            lambda: wish if rank == 1 and step >= 10 else None,
            lambda _: None,
            keep_every_s=lambda: 1.0 + rank,
            clock=lambda: step * 0.1,
        )
        decisions = []
        while step < 15:
            step += 1
            decisions.append(agreement.after(step))
        return decisions

    nothing, stops = Decision(), Decision(stop=signals.Wish("SIGTERM", 1))
    # After the first step every second one: 1, 3, 5, ...; rank 0 keeps every second of its clock.
    expected = [nothing] * 15
    expected[10], expected[12], expected[14] = Decision(stops.stop, keep=True), stops, stops
    assert simulate(2, agree) == [expected, expected]
