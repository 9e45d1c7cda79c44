"""Sweeps with real processes: jobs that meet every end, sweeps that are killed and go on, ranks of torchrun."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.command import CONFIGS, launch

ROOT = Path(__file__).resolve().parents[2]
TINY = (f"--config-dir={CONFIGS}", "experiment=tiny")
ODD = "a=b, [c] {d} 'e' ü: \\ $HOME"


def start(folder, *words, torchrun=0):
    """Start a sweep in ``folder``, under torchrun with so many ranks if any."""
    folder.mkdir(parents=True, exist_ok=True)
    starter = ["-m", "torch.distributed.run", f"--nproc-per-node={torchrun}"] if torchrun else []
    return subprocess.Popen(
        [sys.executable, *starter, "-m", "launcher", "-m", *TINY, "hydra.sweep.dir=sweep", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process):
    try:
        output, error = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output, error


def ledger(folder):
    return json.loads((folder / "sweep" / "sweep.json").read_text())


def digest(folder):
    return json.loads((folder / "status.json").read_text())["weights_sha256"]


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """A sweep of jobs that meet different ends, two at a time."""
    folder = tmp_path_factory.mktemp("ends")
    words = ("model=fated", "model.fate=segfaults,raises,none,exits", "sweep.parallel=2", "sweep.metric=-loss")
    return folder, end(start(folder, *words))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two jobs at a time need two cores")
class TestEnds:
    def test_every_job_has_its_own_end(self, ends):
        folder, (status, output, error) = ends
        jobs = ledger(folder)["jobs"]
        assert status == 1, error
        assert [(job["state"], job["cause"]) for job in jobs] == [
            ("failed", "rank 0 was killed by SIGSEGV"),
            ("failed", "rank 0: ValueError: it was meant to"),
            ("finished", ""),
            ("failed", "rank 0 ended with exit status 7"),
        ]
        assert "4 jobs: 1 finished, 3 failed" in output
        assert "Traceback" not in output + error

    def test_the_traceback_is_where_it_is_said_to_be(self, ends):
        folder, (_, _, error) = ends
        (line,) = [line for line in error.splitlines() if line.startswith("job 1 failed")]
        assert line.endswith("see sweep/1/console.log")
        assert "ValueError: it was meant to" in (folder / "sweep" / "1" / "console.log").read_text()

    def test_jobs_that_run_together_have_cores_of_their_own(self, ends):
        folder, _ = ends
        first, second = [set(job["devices"]) for job in ledger(folder)["jobs"][:2]]
        assert first
        assert second
        assert not first & second

    def test_the_table_holds_every_job(self, ends):
        folder, _ = ends
        rows = list(csv.DictReader((folder / "sweep" / "results.csv").read_text().splitlines()))
        assert [row["model.fate"] for row in rows] == ["segfaults", "raises", "none", "exits"]
        assert float(rows[2]["value"]) == ledger(folder)["jobs"][2]["metrics"]["test/loss"]

    def test_a_job_is_the_run_that_it_would_be_alone(self, ends, tmp_path):
        folder, _ = ends
        alone = launch(tmp_path, 1, *TINY, "model=fated")
        assert digest(folder / "sweep" / "2") == alone.state["weights_sha256"]


def lines_until(process, text, times=1):
    """Read what the sweep says until ``text`` was said so many times."""
    while times:
        line = process.stderr.readline()
        assert line, process.communicate()
        times -= text in line


def test_a_sweep_goes_on_after_any_end(tmp_path):
    words = ("seed=3,1,2", "model=ledger", "hydra.job.chdir=true")
    killed = start(tmp_path, *words)
    lines_until(killed, "job 1 started")
    killed.send_signal(signal.SIGKILL)
    end(killed)
    before = ledger(tmp_path)["jobs"]
    assert [job["state"] for job in before] == ["finished", "running", "waiting"]
    asked = start(tmp_path, *words, "sweep.parallel=1")
    lines_until(asked, "job 1 finished")
    os.killpg(asked.pid, signal.SIGTERM)  # as torchrun, timeout and schedulers do
    assert end(asked)[0] == 75
    assert ledger(tmp_path)["state"] == "preempted"
    status, output, error = end(start(tmp_path, *words))
    assert status == 0, error
    assert "3 jobs: 3 finished" in output
    jobs = ledger(tmp_path)["jobs"]
    assert jobs[0] == before[0]
    for job in jobs:
        (seed,) = [text for text in job["overrides"] if text.startswith("seed=")]
        alone = launch(tmp_path / "alone" / job["folder"], 1, *TINY, "model=ledger", seed)
        assert digest(tmp_path / "sweep" / job["folder"]) == alone.state["weights_sha256"]
    status, _, error = end(start(tmp_path, "seed=3,1", "model=ledger", "hydra.job.chdir=true"))
    assert status == 2
    assert "holds another sweep: seed=3,1,2 there; seed=3,1 here; give the overrides of that sweep" in error


def test_all_ranks_of_torchrun_take_part(tmp_path):
    words = ("model=fated", "model.fate=exits,none", f'+vars.odd="{ODD}"')
    status, output, error = end(start(tmp_path, *words, torchrun=2))
    assert status == 1
    jobs = ledger(tmp_path)["jobs"]
    assert [(job["state"], job["cause"]) for job in jobs] == [
        ("failed", "rank 1 ended with exit status 7"),
        ("finished", ""),
    ], error
    assert "2 jobs: 1 finished, 1 failed" in output
    alone = launch(tmp_path / "alone", 2, *TINY, "model=fated", words[2])
    assert digest(tmp_path / "sweep" / "1") == alone.state["weights_sha256"]
    configs = [(folder / "config.yaml").read_text() for folder in (tmp_path / "sweep" / "1", alone.run_dir)]
    odd = [[line for line in text.splitlines() if "odd:" in line] for text in configs]
    assert odd[0] == odd[1] != []
