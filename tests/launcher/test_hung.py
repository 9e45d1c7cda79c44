"""A rank that the others wait for in vain is named within launch.timeout_s and some seconds, and nothing is left."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
import torch.distributed as dist

from launcher.processes.agent import was_killed
from launcher.processes.environment import Rank
from launcher.processes.failures import Failure
from launcher.processes.pulse import APART, WAITS, WORKS, Culprit, Pulse, culprit, gone, leave_pulse
from launcher.processes.signals import Signals, lives
from launcher.processes.watch import Watch
from tests.launcher.test_signals import ENDLESS, state_of, trains, wait_for
from tests.launcher.test_torchrun import end, start, torchrun

WORDS = (*ENDLESS, "hydra.run.dir=run", "launch.timeout_s=8")


def test_a_stopped_rank_and_one_that_never_comes_back_are_named(tmp_path):
    own = [sys.executable, "-m", "launcher", *WORDS, "launch.processes=2"]
    stopped = start(tmp_path / "stopped", own)
    busy = start(tmp_path / "busy", torchrun(*WORDS, "model._target_=tests.launcher.parts.HangsOnRankOne"))
    wait_for(lambda: trains(tmp_path / "stopped" / "run", ranks=2))
    ranks = psutil.Process(stopped.pid).children(recursive=True)
    next(rank for rank in ranks if rank.environ().get("RANK") == "1").suspend()
    status, _, error = end(stopped)
    assert (status, error.count("error: ")) == (1, 1), error
    assert re.search(r"error: rank 1 has not answered for \d+ s: stopped, or its machine is gone\n", error)
    told = state_of(tmp_path / "stopped" / "run")
    assert (told["state"], told["error"]["rank"], told["error"]["type"]) == ("failed", 1, "RankHung")
    assert not any(lives(rank.pid) for rank in ranks)
    status, _, error = end(busy)
    assert status == 1
    told = state_of(tmp_path / "busy" / "run")
    assert (told["state"], told["error"]["rank"], told["error"]["type"]) == ("failed", 1, "RankHung")
    assert re.match(
        r"rank 1 has been in step 5 for \d+ s, at .*/parts.py:\d+, and the others", told["error"]["message"]
    )
    assert error.count(f"error: {told['error']['message']}\n") == 1


def pulse(rank, at, state=WORKS, in_torch=True, step=12):
    return Pulse(rank, f"machine {rank}", 100, 0.0, state, step, 1000.0, at, "model.py:34", in_torch)


BUSY = "has been in step 13 for 50 s, at model.py:34, and the others waited for it as long as launch.timeout_s allows"
NAMED = {
    "one waits, one is silent": ([(0, WAITS, 0), (1, WORKS, 0)], 1, "rank 1 has not answered for"),
    "one waits, one works": ([(0, WAITS, 5), (1, WORKS, 5)], 1, f"rank 1 {BUSY}"),
    "the silent one comes before the busy one": (
        [(0, WAITS, 5), (1, WORKS, 5), (2, WORKS, 0)],
        2,
        "rank 2 has not answered for",
    ),
    "who is done is not waited for": ([(0, WAITS, 5), (1, APART, 0), (2, WORKS, 5)], 2, f"rank 2 {BUSY}"),
    "one never came": ([(0, WAITS, 5), (2, WORKS, 5)], 1, "rank 1 never arrived"),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_rank_that_the_others_wait_for_is_named(name):
    signs, rank, message = NAMED[name]
    before = [pulse(number, 1045.0, state) for number, state, _ in signs]
    after = [pulse(number, 1045.0 + seconds, state) for number, state, seconds in signs]
    found = culprit(1 + max(number for number, *_ in signs), before, after)
    assert found.rank == rank
    assert found.message.startswith(message)


def test_all_ranks_of_a_machine_that_is_gone_are_named():
    here = [replace(pulse(rank, 1052.0, WAITS), machine="here") for rank in (0, 1)]
    there = [replace(pulse(rank, at), machine="there pid:[1]") for rank, at in ((2, 1045.0), (3, 1044.5), (4, 1050.0))]
    done = replace(pulse(5, 1045.0, APART), machine="there pid:[1]")
    found = culprit(6, [*here, *there[:2]], [*here, *there, done])
    assert (found.rank, found.type) == (2, "RankHung")
    assert re.fullmatch(r"ranks 2, 3 on there have not answered for \d+ s: there is gone or cut off", found.message)


def test_who_is_in_code_of_the_users_is_named_before_who_may_wait_inside_torch():
    signs = [pulse(0, 1050.0), pulse(1, 1050.0, in_torch=False), pulse(2, 1050.0, step=11)]
    assert culprit(3, [], signs).rank == 1


def test_ranks_that_all_wait_blame_none():
    signs = [pulse(rank, 1050.0, WAITS) for rank in range(2)]
    assert culprit(2, signs, signs) is None


def test_a_process_of_this_machine_that_has_ended_is_seen_at_once():
    me = Pulse.now(0, WORKS, 3, time.time())
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    ended = replace(me, rank=1, process=child)
    message = "rank 1 ended without a word (killed, or out of memory?)"
    assert gone([me, ended]) == Culprit(1, "RankLost", message)
    killed = os.fork()
    if not killed:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert was_killed(killed)
    assert gone([replace(ended, process=killed)]).message == "rank 1 was killed by SIGKILL"
    os.waitpid(killed, 0)
    assert not was_killed(killed)
    assert gone([me, replace(ended, machine="another"), replace(ended, state=APART)]) is None


def test_a_process_that_ends_some_time_after_its_connections_is_not_taken_for_silent():
    store = dist.HashStore()
    watch = Watch(Rank(rank=0, world_size=2), Signals(0), os.getppid())
    watch._store = store
    with subprocess.Popen(["sleep", "1"]) as child:
        leave_pulse(store, 0, replace(Pulse.now(1, WORKS, 3, time.time()), process=child.pid))
        found = watch.blame(Failure.of(RuntimeError("connection closed"), 0))
    assert (found.rank, found.type, found.by) == (1, "RankLost", 0)
