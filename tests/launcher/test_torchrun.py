"""What only torchrun itself can show: its restarts, its variables, its ports, and hosts it cannot resolve."""

import json
import os
import socket
import subprocess
import sys
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


def torchrun(*words, flags=()):
    """The command line of torchrun with two ranks."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *flags, "-m", "launcher", *words]


def end(process):
    """Exit status, output and errors, once the process is over."""
    try:
        output, error = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, output, error


def test_two_launches_at_once_beside_a_busy_port(tmp_path):
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        except OSError:
            pass  # somebody else listens there, which is as good
        processes = [
            start(tmp_path / "first", torchrun(*SHORT, OWN_RULE)),
            start(tmp_path / "second", torchrun(*SHORT, OWN_RULE), OMP_NUM_THREADS="3"),
        ]
        ended = [end(process) for process in processes]
    for status, output, error in ended:
        assert status == 0, error
        assert output.count("global batch") == 1
        assert "launcher" not in error
    cores = len(os.sched_getaffinity(0))
    assert f"2 ranks on cpu, {max(1, cores // 2)} thread" in ended[0][1]
    assert "2 ranks on cpu, 3 threads each" in ended[1][1]


def test_a_wrong_override_is_told_once_in_spite_of_restarts(tmp_path):
    status, output, error = end(start(tmp_path, torchrun(*SHORT, "optimzer.lr=1", flags=("--max-restarts=2",))))
    assert status == 1
    assert output == ""
    assert error.count("error: there is no setting optimzer.lr; did you mean 'optimizer.lr'?") == 1
    assert not (tmp_path / "run").exists()


def test_the_first_rank_that_fails_is_shown_once_and_in_the_table(tmp_path):
    model = "model._target_=tests.launcher.parts.FailsOnRankOne"
    status, _, error = end(start(tmp_path, torchrun(*SHORT, model)))
    assert status == 1
    own = error[: error.index("ChildFailedError")]
    assert own.count("error: rank 1: ValueError: rank 1 has had enough\n") == 1
    assert error.count("raise ValueError(") == 1
    table = error[error.index("Root Cause") :]
    assert "rank      : 1 " in table
    assert "rank 1: ValueError: rank 1 has had enough" in table
    state = json.loads((tmp_path / "run" / "status.json").read_text())
    assert state["error"] == {"rank": 1, "type": "ValueError", "message": "rank 1 has had enough"}


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


def test_a_rank_that_dies_without_a_word_is_not_blamed_on_another(tmp_path):
    words = (*TINY, "hydra.run.dir=run", "model._target_=tests.launcher.parts.DiesOnRankOne")
    status, _, _ = end(start(tmp_path, torchrun(*words)))
    assert status == 1
    state = json.loads((tmp_path / "run" / "status.json").read_text())
    assert state["state"] == "failed"
    assert state["error"] == {
        "rank": 1,
        "type": "RankLost",
        "message": "rank 1 ended without a word (killed, or out of memory?); its rank_1.log may tell more",
    }
