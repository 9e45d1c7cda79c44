"""Signals at times when Python or torch would have the word: before torch is loaded, and where nobody obeys them."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from launcher import cli
from launcher.processes import signals
from launcher.processes.signals import Signals, held_back
from launcher.testing import RankError, simulate
from tests.launcher.command import TINY, launch
from tests.launcher.parts import obey_nothing
from tests.launcher.test_signals import ENDLESS, PATIENCE_S, kept_after, state_of

ROOT = Path(__file__).resolve().parents[2]
SLOW_TORCH = """
import os, signal, sys

if "RANK" in os.environ or {everywhere}:
    os.write(os.open({begun!r}, os.O_WRONLY), b"!")
    while True:
        signal.pause()
sys.path.remove({folder!r})
del sys.modules["torch"]
import torch
"""
ON_RANK_ONE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@contextmanager
def started(folder, *command, words=(), everywhere=True, **environment):
    """The command with a torch that takes for ever to load; gives the process, and whether a torch begins to load.

    Args:
        folder: where the command is given.
        command: what starts it.
        words: the command line.
        everywhere: whether torch is slow not in ranks alone.
        environment: further variables.
    """
    os.mkfifo(folder / "begun")
    torch = SLOW_TORCH.format(begun=str(folder / "begun"), folder=str(folder), everywhere=everywhere)
    (folder / "torch.py").write_text(torch)
    with (
        (folder / "begun").open("r+b", buffering=0) as begun,
        subprocess.Popen(
            [*command, sys.executable, "-m", "launcher", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", **environment},
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield process, lambda patience_s=PATIENCE_S: bool(select([begun], [], [], patience_s)[0] and begun.read(1))
        process.kill()


@pytest.mark.parametrize(
    ("numbers", "environment", "told"),
    [
        (["SIGTERM"], {}, "preempted by SIGTERM before the run began\n"),
        (["SIGINT"], {}, "preempted by SIGINT before the run began\n"),
        (["SIGHUP", "SIGUSR1"], {}, "preempted by SIGUSR1 before the run began\n"),
        (["SIGTERM"], ON_RANK_ONE, ""),
        (["SIGTERM"], {"RANK": "first"}, "preempted by SIGTERM before the run began\n"),
    ],
    ids=["one", "keyboard", "hangup is ignored", "rank 0 is to tell", "who knows which rank"],
)
def test_a_signal_while_torch_is_loaded_ends_the_process_with_a_word(tmp_path, numbers, environment, told):
    without_hangup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with started(tmp_path, *without_hangup, **environment) as (process, begun):
        assert begun()
        for number in numbers:
            process.send_signal(getattr(signal, number))
        assert process.communicate()[1] == told
    assert process.returncode == 75


def test_a_signal_before_python_itself_is_loaded_can_wait_until_it_is(tmp_path):
    with held_back(), started(tmp_path) as (process, begun):
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[1] == "preempted by SIGTERM before the run began\n"
        assert not begun(0)
    assert process.returncode == 75


def test_of_a_signal_while_torch_is_loaded_in_ranks_one_of_them_tells(tmp_path):
    words = (*TINY, "launch.processes=2", "hydra.run.dir=run")
    with started(tmp_path, words=words, everywhere=False) as (process, begun):
        assert begun()
        assert begun()
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[1] == "preempted by SIGTERM before the run began\n"
    assert process.returncode == 75


def test_a_signal_that_comes_while_ranks_are_started_is_passed_on_to_them():
    def pass_on():
        mine = Signals(0)
        mine.listen()
        mine.pass_on(())
        before = mine.passed_on
        os.kill(os.getpid(), signal.SIGUSR1)
        with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
            mine.pass_on([first.pid])
            first.wait()
            mine.pass_on([second.pid])
        return before, mine.passed_on, first.returncode, second.returncode

    assert simulate(1, pass_on, process_group=False) == [(False, True, -signal.SIGUSR1, -signal.SIGUSR1)]


def without_grace():
    signals.GRACE_S = signals.SAME_S = 0.0


def without_others():
    without_grace()
    cli.meet = lambda _: obey_nothing(signal.SIGTERM)


DEAF = {
    "before the run": (without_others, (), 75, "preempted by SIGTERM before the run began\n"),
    "before the first step": (
        without_grace,
        ("model._target_=tests.launcher.parts.DeafWhenBuilt",),
        75,
        "preempted by SIGTERM on rank 0 before the first step: nothing is lost\n",
    ),
    "a second signal in training": (
        without_grace,
        ("model._target_=tests.launcher.parts.Deaf", "+model.numbers=SIGINT+SIGTERM"),
        1,
        "error: rank 0: Terminated: stopped at once by SIGTERM, a second signal after SIGINT on rank 0\n",
    ),
}


@pytest.mark.parametrize("when", DEAF)
def test_a_process_that_does_not_obey_ends_with_a_word_too(tmp_path, when):
    before, words, status, told = DEAF[when]
    with pytest.raises(RankError, match=f"exit status {status}, without a word$"):
        launch(tmp_path, 1, *ENDLESS, *words, before=before)
    assert (tmp_path / "stderr_0").read_text() == told
    if words:
        assert state_of(tmp_path / "run")["state"] == ("preempted" if status == 75 else "failed")
        assert kept_after(tmp_path / "run") == []
