"""Jobs on a real Slurm cluster of two nodes, where this machine can start one."""

import json
import os
from pathlib import Path

import pytest
import yaml

from launcher.configure.launch import LaunchConfig
from launcher.configure.slurm import SlurmConfig
from launcher.slurm.queue import tasks_in_queue
from launcher.slurm.script import Place, array_script
from tests.launcher.cluster import CAN_START, NEEDS, PATIENCE_S, CannotStartError, cluster
from tests.launcher.command import CONFIGS, TINY, Line, in_turn, launch
from tests.launcher.test_resume import lines_without_speed
from tests.launcher.test_signals import wait_for
from tests.launcher.test_torchrun import ROOT

pytestmark = pytest.mark.skipif(not CAN_START, reason=NEEDS)

ON_TWO_NODES = ("launch.engine=slurm", "launch.nodes=2", "launch.processes=1")
ON_ONE = ("launch.engine=slurm", "launch.processes=2")
ASKED = (f"--config-dir={CONFIGS}", "experiment=survivor", "model._target_=tests.launcher.parts.AwaitsSignal")
ODD_FOLDER = 'odd %j "a"=1,b (ü) #x $HOME'
ODD_TEXT = "a b=c, 'd'\n$(e) \\ µ"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A cluster for the tests of this file."""
    try:
        with cluster(tmp_path_factory.mktemp("cluster")) as found:
            yield found
    except CannotStartError as error:
        pytest.skip(f"{NEEDS}: {error}")


@pytest.fixture(scope="module")
def submitted(slurm, tmp_path_factory):
    """What was printed for jobs that were submitted at once: on two nodes, in an odd folder, to no partition."""
    folder = tmp_path_factory.mktemp("submitted")

    def on_the_cluster():
        os.environ.update(SLURM_CONF=slurm.environment["SLURM_CONF"], PYTHONPATH=str(ROOT))

    lines = {
        "asked": (*ASKED, *ON_TWO_NODES),
        "odd": (
            *TINY,
            *ON_ONE,
            f"hydra.run.dir={json.dumps(ODD_FOLDER, ensure_ascii=False)}",
            f"+vars.text={json.dumps(ODD_TEXT, ensure_ascii=False)}".replace("\\n", "\n").replace("\\\\", "\\"),
        ),
        "sweep": ("-m", *TINY, "launch.engine=slurm", "seed=1,2", "sweep.parallel=1", "hydra.sweep.dir=sweep"),
        "nowhere": (*TINY, *ON_ONE, "launch.slurm.partition=nowhere"),
    }
    places = {name: folder / (ODD_FOLDER if name == "odd" else name) for name in lines}
    ended = in_turn(*(Line(places[name], words, on_the_cluster) for name, words in lines.items()))
    return dict(zip(lines, ended, strict=True))


def job_of(told):
    assert told.status == 0, told.error
    return told.output.split("Slurm job")[1].split(":")[0].strip()


def test_a_preempted_job_goes_back_into_the_queue_and_ends_as_one_left_alone(slurm, submitted, tmp_path):
    told, job = submitted["asked"], job_of(submitted["asked"])
    folder = told.folder / "run"
    wait_for(lambda: (folder / "signalled_0").exists() and (folder / "signalled_1").exists(), PATIENCE_S)
    slurm.run("scancel", "--signal=USR1", job)
    slurm.wait(job, "PENDING")
    assert json.loads((folder / "status.json").read_text())["state"] == "preempted"
    slurm.wait(job, "COMPLETED")
    whole = launch(tmp_path, 2, *ASKED, "+model.step=99")
    assert lines_without_speed(told) == lines_without_speed(whole)
    assert told.state["weights_sha256"] == whole.state["weights_sha256"]
    printed = (folder / f"slurm-{job}.out").read_text()
    assert printed.count("preempted by SIGUSR1 on rank") == 1
    assert f"job {job} is put back into the queue, and continues there" in printed
    assert f"resumed from     {folder}/checkpoints/step_00000003" in printed


def test_words_and_folders_reach_the_job_as_they_are(slurm, submitted):
    told, job = submitted["odd"], job_of(submitted["odd"])
    assert slurm.wait(job, "COMPLETED", "FAILED", "PENDING") == "COMPLETED"
    folder = told.folder / ODD_FOLDER
    assert folder == told.run_dir
    assert f"run folder       {folder}\n" in told.output
    assert "2 ranks" in (folder / f"slurm-{job}.out").read_text()
    assert yaml.safe_load((folder / "config.yaml").read_text())["vars"]["text"] == ODD_TEXT
    assert told.state["state"] == "finished"


def test_the_jobs_of_a_sweep_are_tasks_of_an_array(submitted):
    told = submitted["sweep"]
    assert told.status == 0, told.error
    assert "2 jobs, 1 at a time, 1 node, 1 rank\n" in told.output

    def states():
        files = [told.folder / "sweep" / number / "status.json" for number in "01"]
        return [json.loads(file.read_text())["state"] for file in files if file.exists()]

    wait_for(lambda: states() == ["finished", "finished"], PATIENCE_S)
    digests = [json.loads((told.folder / "sweep" / n / "status.json").read_text())["weights_sha256"] for n in "01"]
    assert len(set(digests)) == 2


def test_each_task_of_an_array_goes_back_by_itself(slurm, tmp_path):
    launcher = tmp_path / "python"
    launcher.write_text('#!/bin/bash\necho "$4 ${SLURM_RESTART_COUNT:-0}"\n[ -n "$SLURM_RESTART_COUNT" ] || exit 75\n')
    launcher.chmod(0o755)
    launch = LaunchConfig(engine="slurm", slurm=SlurmConfig(python=str(launcher)))
    script = tmp_path / "slurm.sh"
    orders = {number: Path(f"/order/{number}") for number in (1, 2)}
    script.write_text(array_script(launch, orders, None, Place(tmp_path, "%a.out", tmp_path), "python"))
    array = slurm.run("sbatch", "--parsable", str(script))
    for number in orders:
        slurm.wait(f"{array}_{number}", "COMPLETED", "FAILED", "CANCELLED")
        printed = (tmp_path / f"{number}.out").read_text().splitlines()
        assert [line for line in printed if line.startswith("/order")] == [f"/order/{number} {n}" for n in (0, 1)]
        assert f"job {array}_{number} is put back into the queue, and continues there" in printed


def test_the_tasks_that_are_not_over_are_known(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    array = slurm.run("sbatch", "--parsable", "--hold", "--array=0,4-5", "--output=/dev/null", "--wrap=true")
    assert tasks_in_queue([array, "999"]) == {0, 4, 5}
    slurm.run("scancel", f"{array}_4")
    assert tasks_in_queue([array]) == {0, 5}
    slurm.run("scancel", array)


def test_what_sbatch_refuses_is_said_once(submitted):
    told = submitted["nowhere"]
    assert told.status == 2
    assert told.output == ""
    assert told.error == (
        f"error: launch.engine=slurm: sbatch refuses {told.folder}/run/slurm.sh: invalid partition specified: nowhere; "
        "Batch job submission failed: Invalid partition name specified\n"
    )
