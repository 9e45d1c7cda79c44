"""What only torchrun itself can show: its restarts, its variables, its ports, and hosts it cannot resolve."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.launcher.command import TINY

ROOT = Path(__file__).resolve().parents[2]
OWN_RULE = "launch.threads_per_rank=null"
SHORT = (*TINY, "trainer.max_steps=1", "hydra.run.dir=run")


def start(folder, command, **environment):
    """Start ``command`` in ``folder``, without a number of threads unless ``environment`` has one."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(*words, flags=(), ranks=2):
    """The command line of torchrun."""
    flags = (f"--nproc-per-node={ranks}", *flags)
    return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "launcher", *words]


def end(process):
    """Exit status, output and errors, once the process is over."""
    try:
        output, error = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, output, error


@contextmanager
def busy_port():
    """Somebody else listens where torchrun once did."""
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody does, which is as good
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        yield


LAUNCHES = {
    "plain": (torchrun(*SHORT, OWN_RULE), {}),
    "failing": (
        torchrun(*SHORT, OWN_RULE, "model._target_=tests.launcher.parts.FailsOnRankOne"),
        {"OMP_NUM_THREADS": "3"},
    ),
    "wrong": (torchrun(*SHORT, "optimzer.lr=1", flags=("--max-restarts=1",)), {}),
    "dying": (torchrun(*TINY, "hydra.run.dir=run", "model._target_=tests.launcher.parts.DiesOnRankOne"), {}),
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """All of ``LAUNCHES``, at once: by name, the folder, exit status, output and errors."""
    folders = {name: tmp_path_factory.mktemp(name) for name in LAUNCHES}
    with busy_port():
        processes = {name: start(folders[name], command, **more) for name, (command, more) in LAUNCHES.items()}
        return {name: (folders[name], *end(process)) for name, process in processes.items()}


def test_launches_at_once_beside_a_busy_port(launched):
    _, status, output, error = launched["plain"]
    assert status == 0, error
    assert "launcher" not in error
    cores = len(os.sched_getaffinity(0))
    assert f"2 ranks on cpu, {max(1, cores // 2)} thread" in output
    assert "2 ranks on cpu, 3 threads each" in launched["failing"][2]
    assert [launched[name][2].count("global batch") for name in ("plain", "failing", "dying")] == [1, 1, 1]


def test_a_wrong_override_is_told_once_in_spite_of_restarts(launched):
    folder, status, output, error = launched["wrong"]
    assert status == 1
    assert output == ""
    assert error.count("error: there is no setting optimzer.lr; did you mean 'optimizer.lr'?") == 1
    assert not (folder / "run").exists()


def test_the_first_rank_that_fails_is_shown_once_and_in_the_table(launched):
    folder, status, _, error = launched["failing"]
    assert status == 1
    own = error[: error.index("ChildFailedError")]
    assert own.count("error: rank 1: ValueError: rank 1 has had enough\n") == 1
    assert error.count("raise ValueError(") == 1
    table = error[error.index("Root Cause") :]
    assert "rank      : 1 " in table
    assert "rank 1: ValueError: rank 1 has had enough" in table
    state = json.loads((folder / "run" / "status.json").read_text())
    assert state["error"] == {"rank": 1, "type": "ValueError", "message": "rank 1 has had enough"}


def test_a_rank_that_dies_without_a_word_is_not_blamed_on_another(launched):
    folder, status, *_ = launched["dying"]
    assert status == 1
    state = json.loads((folder / "run" / "status.json").read_text())
    assert state["state"] == "failed"
    assert (state["error"]["rank"], state["error"]["type"]) == (1, "RankLost")
    how = r"rank 1 ended (with exit status 9, without a word|without a word \(.*\))"
    assert re.match(how, state["error"]["message"])


def can_rename_host():
    command = ["unshare", "--uts", "hostname", "no-such-host.invalid"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_rename_host(), reason="needs the right to rename the host")
def test_one_process_starts_two_ranks_on_one_core_of_a_host_whose_name_does_not_resolve(tmp_path):
    rename = 'hostname no-such-host.invalid && exec taskset -c "$0" "$@"'
    confined = ["unshare", "--uts", "sh", "-c", rename, str(min(os.sched_getaffinity(0)))]
    command = [sys.executable, "-m", "launcher", *SHORT, OWN_RULE, "launch.processes=2"]
    status, output, error = end(start(tmp_path, [*confined, *command]))
    assert status == 0, error
    assert output.count("global batch     12 rows = 2 ranks x 6 rows\n") == 1
    assert "2 ranks on cpu, 1 thread each\n" in output
    assert (tmp_path / "run" / "rank_1.log").exists()
