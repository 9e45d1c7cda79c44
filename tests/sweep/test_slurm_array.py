"""A sweep with launch.engine=slurm, and stand-ins for sbatch and squeue: an array of jobs, and what became of them."""

import csv
import json
import os

import pytest

from launcher.sweep.order import Order
from tests.launcher.command import TINY, Line, in_turn

SBATCH = '#!/bin/bash\ngrep -- --array "$2" >> submitted\necho "$((76 + $(wc -l < submitted)))"\n'
SQUEUE = '#!/bin/bash\necho "$*" >> asked\ncat in_queue\n'
SWEEP = ("-m", *TINY, "launch.engine=slurm", "hydra.sweep.dir=sweep", "sweep.metric=-loss")
SEEDS = (*SWEEP, "seed=3,1,2", "sweep.parallel=2")


def tools(folder):
    """Stand-ins in front of all other programs."""
    (folder / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "in_queue").write_text("")
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"


def leave(folder, number, state, loss=None, error=None):
    """As a job of the sweep leaves its folder."""
    metrics = {} if loss is None else {"test/loss": loss}
    status = {"state": state, "step": 4, "metrics": metrics, "error": error}
    (folder / "sweep" / str(number) / "status.json").write_text(json.dumps(status))


def some_ended(folder):
    leave(folder, 0, "finished", 0.5)
    leave(folder, 1, "failed", error={"rank": 1, "type": "ValueError", "message": "it was meant to"})
    leave(folder, 2, "running")
    (folder / "in_queue").write_text("2\n")


def one_was_killed(folder):
    leave(folder, 1, "finished", 0.25)
    leave(folder, 2, "running")
    (folder / "in_queue").write_text("")


def all_ended(folder):
    leave(folder, 2, "finished", 0.75)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A plan and a sweep that is looked after three times, and sweeps that cannot be."""
    folder, other = tmp_path_factory.mktemp("sweeps"), tmp_path_factory.mktemp("others")
    lines = {
        "plan": Line(folder, (*SEEDS, "mode=plan"), lambda: tools(folder)),
        "first": Line(folder, (*SEEDS, "sweep.on_failure=stop")),
        "second": Line(folder, SEEDS, lambda: some_ended(folder)),
        "third": Line(folder, SEEDS, lambda: one_was_killed(folder)),
        "last": Line(folder, SEEDS, lambda: all_ended(folder)),
        "mixed": Line(other, (*SWEEP, "launch.processes=1,2")),
        "search": Line(other, (*SWEEP, "seed=1,2", "hydra/sweeper=optuna")),
        "never": Line(other, (*SWEEP, "seed=1,2", "checkpoint.resume=never")),
    }
    return folder, dict(zip(lines, in_turn(*lines.values()), strict=True))


def test_a_plan_shows_jobs_and_script(sweeps):
    folder, ended = sweeps
    assert (ended["plan"].status, ended["plan"].error) == (0, "")
    plan, script = ended["plan"].output.split("mode=plan: nothing was started, nothing was written\n")
    assert plan.startswith(f"sweep            3 jobs, 2 at a time, in {folder}/sweep\n")
    assert "#SBATCH --array=0-2%2\n" in script
    assert f"  [1]={folder}/sweep/1/job.json\n" in script


def test_all_jobs_are_submitted_at_once(sweeps):
    folder, ended = sweeps
    assert (ended["first"].status, ended["first"].error) == (0, "")
    lines = ended["first"].output.splitlines()
    assert lines[0].startswith("note: sweep.on_failure=stop has no effect with launch.engine=slurm: each job ends")
    assert lines[1] == "sweep            3 jobs: 3 waiting; folder sweep"
    assert "Slurm array      77: 3 jobs, 2 at a time, 1 node, 1 rank" in lines
    assert f"output           {folder}/sweep/slurm-77_*.out" in lines
    assert lines[-1].startswith("see what became  python -m launcher -m ")
    assert "hydra.sweep.dir=sweep" in lines[-1]
    orders = [json.loads(Order.read(folder / "sweep" / str(n) / "job.json").run) for n in range(3)]
    assert [order["seed"] for order in orders] == [3, 1, 2]


def test_the_same_command_tells_how_the_jobs_stand_and_submits_what_is_missing(sweeps):
    folder, ended = sweeps
    assert "3 jobs: 1 finished, 1 running, 1 waiting" in ended["second"].output
    assert "Slurm array      78: 1 job, " in ended["second"].output
    assert "3 jobs: 2 finished, 1 waiting" in ended["third"].output
    assert "best             job 1: loss 0.2500 with seed=1" in ended["third"].output
    arrays = ["0-2%2", "1%2", "2%2"]
    assert (folder / "submitted").read_text() == "".join(f"#SBATCH --array={array}\n" for array in arrays)
    asked = [line.split("--jobs=")[1] for line in (folder / "asked").read_text().splitlines()]
    assert asked == ["77", "77", "78", "77", "78", "79"]


def test_a_sweep_that_is_over_is_told_of_and_submits_nothing(sweeps):
    folder, ended = sweeps
    assert "3 jobs: 3 finished" in ended["last"].output
    assert "Slurm array" not in ended["last"].output
    rows = list(csv.DictReader((folder / "sweep" / "results.csv").read_text().splitlines()))
    assert [(row["seed"], row["state"], row["value"]) for row in rows] == [
        ("3", "finished", "0.5"),
        ("1", "finished", "0.25"),
        ("2", "finished", "0.75"),
    ]
    assert json.loads((folder / "sweep" / "sweep.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed", "job 1 has another launch.processes than job 0, and the jobs of one array share it; submit a sweep"),
        ("search", "launch.engine=slurm submits all jobs at once, and hydra/sweeper OptunaSweeper chooses some by the"),
        ("never", "checkpoint.resume=never does not let a job continue that was put back into the queue; set"),
    ],
)
def test_what_cannot_be_an_array_is_refused(sweeps, name, message):
    _, ended = sweeps
    assert (ended[name].status, ended[name].output) == (2, "")
    assert message in ended[name].error
    assert ended[name].error.count("\n") == 1
