"""launch(): a function on every rank, from a script, a test or a notebook, and nothing left of it however it ends."""

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import launcher
from launcher import RankError, launch
from launcher.processes.signals import lives
from tests.launcher.test_signals import wait_for

PATIENCE_S = 180.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("processes", [1, 3, 5])
def test_every_rank_gives_its_value_and_prints(capsys, processes):
    base = torch.arange(2.0)

    def total(word):
        mine = base + dist.get_rank()
        dist.all_reduce(mine)
        print(f"{word} {dist.get_rank()} of {dist.get_world_size()}")  # noqa: T201
        return mine, os.environ["RANK"], torch.get_num_threads()

    found = launch(total, "rank", processes=processes, threads_per_rank=2)
    expected = processes * base + sum(range(processes))
    assert [rank for _, rank, _ in found] == [str(rank) for rank in range(processes)]
    assert all(torch.equal(value, expected) and threads == 2 for value, _, threads in found)
    printed = sorted(capsys.readouterr().out.splitlines())
    assert printed == [f"rank {rank} of {processes}" for rank in range(processes)]


SCRIPT = """
import os, signal, sys, torch
import torch.distributed as dist
from launcher import RankError, launch

class LostError(Exception):
    pass

def fails():
    if dist.get_rank() == 1:
        raise LostError("the way")
    dist.all_reduce(torch.zeros(1))

def crashes():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.all_reduce(torch.zeros(1))

try:
    launch(fails, processes=2)
except LostError as error:
    print("raised", error, "by", str(error.__cause__).splitlines()[0])
try:
    launch(crashes, processes=2)
except RankError as error:
    print(error)
try:
    launch(lambda: print("printed") or sys.exit(3), processes=1)
except RankError as error:
    print(error)
"""


def test_a_script_without_a_guard_or_a_file_gets_what_ranks_raise_print_and_die_of(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "5", "WORLD_SIZE": "7"}
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "raised the way by rank 1:",
        "rank 1 was killed by SIGSEGV",
        "printed",
        "SystemExit: 3",
    ]


ENDLESS = """
import os, signal, subprocess, sys
import torch.distributed as dist
from launcher import launch

def stays(folder):
    subprocess.Popen(["sleep", "1000"])
    open(f"{folder}/{os.getpid()}", "w").close()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        signal.pause()

launch(stays, sys.argv[1], processes=2)
"""


def test_ranks_end_with_a_caller_that_is_killed_also_those_that_were_stopped(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], env=environment) as caller:
        wait_for(lambda: len([*tmp_path.iterdir()]) == 2, PATIENCE_S)
        ranks = [int(path.name) for path in tmp_path.iterdir()]
        wait_for(lambda: psutil.STATUS_STOPPED in [psutil.Process(rank).status() for rank in ranks])
        left = [process.pid for process in psutil.Process(caller.pid).children(recursive=True)]
        assert len(left) == 4, "two ranks with a process of their own each"
        caller.kill()
    wait_for(lambda: not any(lives(process) for process in left))


class Interrupting:
    """A stream like a notebook's, whose user presses the button when something is printed."""

    def write(self, text):
        if text:
            raise KeyboardInterrupt

    def flush(self):
        pass


def test_an_interrupt_ends_the_ranks(monkeypatch):
    def prints():
        print("here")  # noqa: T201
        signal.pause()

    before = psutil.Process().children(recursive=True)
    monkeypatch.setattr(sys, "stdout", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        launch(prints, processes=2)
    assert psutil.Process().children(recursive=True) == before


def test_ranks_that_hang_are_named():
    with pytest.raises(TimeoutError, match="rank 0, rank 1 of 2 ranks did not end in time"):
        launch(signal.pause, processes=2, timeout_s=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 0}, "processes=0 is no number of ranks: give one from 1 on, or 'auto'"),
        ({"processes": True}, "processes=True is no number of ranks"),
        ({"processes": "two"}, "processes='two' is no number of ranks"),
        (
            {"processes": 5},
            "processes=5 needs 5 CUDA devices, and this machine shows 4; start fewer, e.g. processes='a",
        ),
        ({"device": "tpu"}, "device='tpu' is not one of auto, cpu, cuda"),
        ({"timeout_s": -1}, "timeout_s=-1 is no time to wait: give seconds above 0, or None"),
        ({"timeout_s": math.nan}, "timeout_s=nan is no time to wait"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, settings, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ValueError, match=re.escape(message)):
        launch(print, **settings)


@pytest.mark.parametrize("processes", [1, "auto"])
def test_devices_must_be_there(monkeypatch, processes):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device='cuda': this machine shows no CUDA device"):
        launch(print, processes=processes, device="cuda")


def test_nothing_is_loaded_until_it_is_asked_for():
    code = "import sys, launcher; assert 'torch' not in sys.modules; launcher.lunch"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "AttributeError: module 'launcher' has no attribute 'lunch'" in done.stderr
    assert launcher.RankError is RankError
