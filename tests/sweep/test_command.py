"""The command with -m, where no job is started: plans, and what is refused before anything is."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import files
from launcher.configure.command_line import parse
from launcher.configure.compose import compose_run
from launcher.files import lock
from launcher.sweep.jobs import Job
from launcher.sweep.order import leave_order
from tests.launcher.command import TINY, Line, in_turn

REFUSED = {
    "seed=range(1,1)": "the sweep has no jobs: give every setting that it is over at least one value",
    "seed=1,x": "job 1 (experiment=tiny seed=x): seed=x: Value 'x' of type 'str' could not be converted to Integer",
    "batch.global_size=12,0": "batch.global_size=0 is too small: the least is 1",
    "sweep.parallel=99 seed=1,2": "sweep.parallel=99 is too much: 99 jobs need a core each, and there are ",
    "sweep.metric=acuracy seed=1,2": "sweep.metric=acuracy: acuracy is not evaluated; did you mean 'accuracy'?",
    "sweep.metric=loss seed=1,2": "sweep.metric=loss takes the highest loss for the best; set sweep.metric=-loss",
    "sweep.metric=accuracy data.test=null": "sweep.metric=accuracy: nothing is evaluated without data.test",
    "sweep.on_failure=maybe": "sweep.on_failure=maybe is not one of continue, stop",
    "sweep.on_failure=0": "sweep.on_failure=0 is too small: the least is 1",
    "sweep.job_timeout_s=0": "sweep.job_timeout_s=0.0 is too small: the least is 1",
    "sweep.retries=3": "there is no setting sweep.retries",
    "optimizer.lr=interval(0,1)": "does not support sweep type : INTERVAL_SWEEP; search with hydra/sweeper=optuna",
    "hydra/sweeper=optuna sweep.metric=accuracy": "hydra/sweeper=optuna: nothing is searched; give a setting",
    "seed=1,2 hydra.sweep.subdir=same": "job 1 (experiment=tiny seed=2): hydra.sweep.subdir gives it the folder of",
    "seed=1 hydra.sweep.subdir=.": "hydra.sweep.subdir gives it the folder of the sweep, ",
    f"seed=1,2 hydra.sweep.subdir=a/${{seed}}{'x' * 260}": "whose name has 261 bytes, which the file system does not",
    "sweep.metric=accuracy,-loss": "accuracy,-loss: all jobs of a sweep share sweep.metric; give one value",
    "mode=train,plan": "job 1: mode=plan runs nothing; give the whole sweep mode=plan",
    "launch.nodes=2 launch.rdzv_endpoint=a:1": "launch.nodes=2: a sweep started with python stays on its machine",
    "launch.log_dir=logs": "logs is for a run by itself: what the ranks of a job print is in console.log of its",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    lines = [Line(folder / str(n), ("-m", *TINY, *words.split())) for n, words in enumerate(REFUSED)]
    return dict(zip(REFUSED, in_turn(*lines), strict=True))


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_sweep_can_be_is_refused_before_anything_starts(refused, words):
    done = refused[words]
    assert done.status == 2
    assert done.error.startswith("error: ")
    assert REFUSED[words] in done.error
    assert done.error.count("\n") == 1
    assert sorted(path.name for path in done.folder.iterdir()) == ["stderr_0", "stdout_0"]


FOLDERS = {
    "hydra.sweep.subdir=${hydra.job.override_dirname}": [
        "experiment=tiny,mode=plan,seed=1",
        "experiment=tiny,mode=plan,seed=2",
    ],
    "hydra.sweep.subdir=../${hydra.job.num}": ["0", "1"],
    "hydra.sweep.subdir=seed${seed}": ["seed1", "seed2"],
}
TWO = "seed=1,2 batch.global_size=12,6"
REFERS = "batch.global_size=12,6 trainer.epochs=${batch.global_size} hydra/launcher=basic"


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    given = [TWO, REFERS, *(f"seed=1,2 {subdir}" for subdir in FOLDERS)]
    lines = [
        Line(folder / str(n), ("-m", *TINY, *words.split(), "mode=plan", "hydra.sweep.dir=sweep"))
        for n, words in enumerate(given)
    ]
    return dict(zip(given, in_turn(*lines), strict=True))


def test_a_plan_lists_every_job_and_makes_nothing(plans):
    done = plans[TWO]
    assert done.status == 0, done.error
    lines = done.output.splitlines()
    assert lines[0] == f"sweep            4 jobs, one at a time, in {done.folder}/sweep"
    assert [line.split("  in ") for line in lines[2:6]] == [
        [f"job {n}            experiment=tiny seed={seed} batch.global_size={size}", str(n)]
        for n, (seed, size) in enumerate([(1, 12), (1, 6), (2, 12), (2, 6)])
    ]
    assert [line for line in lines if line.startswith("job ")][4:] == ["job 0,2", "job 1,3"]
    assert "global batch     6 rows = 1 rank x 6 rows" in lines
    assert lines[-1] == "mode=plan: nothing was started, nothing was written"
    assert not (done.folder / "sweep").exists()


@pytest.mark.parametrize(("subdir", "names"), FOLDERS.items())
def test_each_job_has_the_folder_that_its_own_settings_give(plans, subdir, names):
    done = plans[f"seed=1,2 {subdir}"]
    found = [line.rpartition("  in ")[2] for line in done.output.splitlines()[2:4]]
    assert [Path(name).name for name in found] == names, done.error


def test_what_an_override_refers_to_is_that_of_the_job(plans):
    done = plans[REFERS]
    epochs = [line.split()[1] for line in done.output.splitlines() if line.startswith("run ")]
    assert epochs == ["12", "6"], done.error


def test_what_changes_nothing_is_said_once(plans):
    output = plans[REFERS].output
    assert output.count("note: hydra/launcher changes nothing: the launcher keeps its own logs and folders\n") == 1
    assert output.count("note: hydra.run.dir changes nothing: a sweep has hydra.sweep.dir\n") == 1


def test_a_job_waits_until_its_folder_is_left(tmp_path):
    run = compose_run(parse([*TINY, "trainer.max_steps=1"])).run
    order = leave_order(Job(0, (), run, tmp_path / "run", command="{}"))

    def leave_when_waited_for():
        reader, writer = os.pipe()
        holder = os.fork()
        if holder == 0:
            with lock(tmp_path / "run" / ".lock"):
                os.write(writer, b".")
                signal.pause()
        os.read(reader, 1)
        files.time = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: _end(holder))

    (done,) = in_turn(Line(tmp_path, ("--job", str(order)), leave_when_waited_for))
    assert done.status == 0, done.error
    assert done.state["state"] == "finished"


def _end(process):
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
