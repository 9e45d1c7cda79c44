"""The command with launch.engine=slurm, on a machine with a stand-in for sbatch or with none."""

import os
import sys
from pathlib import Path

import pytest

from launcher.configure.command_line import parse
from launcher.configure.compose import compose_run
from launcher.configure.launch import LaunchConfig
from launcher.configure.schema import RunConfig
from launcher.configure.start import with_words
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.slurm.run import in_a_job
from launcher.sweep.order import Order
from tests.launcher.command import TINY, Line, in_turn

HERE = (*TINY, "launch.engine=slurm")
SBATCH = """#!/bin/bash
if grep --quiet refused "${@: -1}"; then
  echo "sbatch: error: Batch job submission failed: Requested node configuration is not available" >&2
  exit 1
fi
echo "sbatch: the queue is long today" >&2
echo "$@" >> submitted
echo "77;cluster"
"""
LINES = {
    "submitted": ("launch.nodes=1:2", "launch.slurm.gpus_per_node=a100:4", "launch.slurm.time=90", "trainer.epochs=2"),
    "idle": ("launch.nodes=4", "launch.processes=4"),
    "plan": ("mode=plan", "launch.processes=3", "hydra.run.dir=planned", 'launch.slurm.setup=["echo hello"]'),
    "refused": ("+launch.slurm.extra.comment=refused",),
    "never": ("checkpoint.resume=never",),
    "once": ("checkpoint.resume=never", "launch.slurm.requeue=false"),
    "gpus": ("launch.slurm.gpus_per_node=2", "launch.processes=3"),
    "nowhere": (),
    "trained": ("launch.engine=local", "hydra.run.dir=../run", "trainer.epochs=1"),
    "again": ("hydra.run.dir=../run", "trainer.epochs=3", "launch.processes=2"),
    "other": ("hydra.run.dir=../run", "mode=evaluate", "checkpoint.load=../run"),
    "typo": ("launch.slurm.gpu_per_node=4",),
    "engine": ("launch.engine=slrum",),
    "extra": ("launch.slurm.extra.constraint=a100",),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each command line gave."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text(SBATCH)
    (folder / "bin" / "sbatch").chmod(0o755)
    path = os.environ["PATH"]

    def before(name):
        def set_path():
            os.environ["PATH"] = str(folder) if name == "nowhere" else f"{folder / 'bin'}:{path}"

        return set_path

    lines = {name: Line(folder / name, (*HERE, *words), before(name)) for name, words in LINES.items()}
    lines["queued"] = Line(folder / "queued", ("inspect", str(folder / "submitted" / "run")))
    return dict(zip(lines, in_turn(*lines.values()), strict=True))


def script_of(ended):
    return (ended.folder / "run" / "slurm.sh").read_text()


def test_a_run_is_submitted_and_the_user_told_where_it_is(told):
    ended = told["submitted"]
    folder = ended.folder / "run"
    assert (ended.status, ended.error) == (0, "")
    assert ended.output == (
        "sbatch: the queue is long today\n"
        "Slurm job        77: 1 to 2 nodes, 4 ranks on each, at most 0-01:30:00\n"
        f"script           {folder}/slurm.sh\n"
        f"output           {folder}/slurm-77.out\n"
        f"run folder       {folder}\n"
        f"follow it        squeue --jobs=77; tail -F {folder}/slurm-77.out\n"
        f"continue it      sbatch {folder}/slurm.sh\n"
    )
    assert (ended.folder / "submitted").read_text() == f"--parsable {folder}/slurm.sh\n"
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "slurm.sh"]


def test_the_job_finds_the_settings_as_they_were(told):
    ended = told["submitted"]
    folder = ended.folder / "run"
    order = Order.read(folder / "job.json")
    run = RunConfig.from_json(order.run)
    assert (run.trainer.epochs, run.launch.processes, run.launch.nodes) == (2, 4, "1:2")
    assert (order.run_dir, order.notes) == (str(folder), [])
    text = script_of(ended)
    assert f"{sys.executable} -m launcher --job {folder}/job.json\n" in text
    assert "launch.processes=4\n" in text
    assert f"#SBATCH --chdir={ended.folder}\n" in text


def test_a_run_whose_job_waits_is_told_of(told):
    folder = told["submitted"].folder / "run"
    assert told["queued"].output == f"run folder       {folder}\nstate            not begun: it waits for its turn\n"


def test_a_run_that_the_job_continues_is_told_of(told):
    assert told["trained"].status == 0, told["trained"].error
    lines = told["again"].output.splitlines()
    assert lines[0].startswith("note: continues from ")
    assert "step 2" in lines[0]
    assert lines[1].startswith("note: with other settings: ")
    assert lines[1].endswith(", trainer.epochs 1 -> 3, launch.processes null -> 2")


def test_devices_that_would_idle_are_told_before_the_job_waits(told):
    assert told["idle"].status == 0
    assert told["idle"].output.startswith("note: 4 of 16 devices idle: batch.global_size=12 feeds 12 devices")


def test_a_plan_shows_the_script_and_submits_nothing(told):
    ended = told["plan"]
    assert (ended.status, ended.error) == (0, "")
    plan, script = ended.output.split("\n\n", 1)
    assert "global batch     12 rows = 3 ranks x 4 rows" in plan
    assert "mode=plan: nothing was started, nothing was written" in plan
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=evenshard\n")
    assert "\nset -e\necho hello\nset +e\n" in script
    assert not Path(ended.folder / "planned").exists()
    assert not (ended.folder / "submitted").exists()


MESSAGES = {
    "refused": "launch.engine=slurm: sbatch refuses {folder}/run/slurm.sh: "
    "Batch job submission failed: Requested node configuration is not available",
    "never": "checkpoint.resume=never does not let a job continue that was put back into the queue; "
    "set launch.slurm.requeue=false or checkpoint.resume=auto",
    "nowhere": "launch.engine=slurm: this machine has no sbatch; give the command where jobs are submitted, "
    "or set launch.engine=local",
    "gpus": "launch.processes=3 needs 3 GPUs on each node, and launch.slurm.gpus_per_node=2 asks for 2; "
    "leave launch.processes out for one rank per GPU",
    "other": "hydra.run.dir={folder}/../run holds a run already; nothing is overwritten: give another folder, "
    "or continue that run with checkpoint.resume=auto",
    "typo": "there is no setting launch.slurm.gpu_per_node; did you mean 'launch.slurm.gpus_per_node'?",
    "engine": "launch.engine=slrum is not one of local, slurm; did you mean 'slurm'?",
    "extra": "launch.slurm.extra.constraint is not in the chosen config; to add it: +launch.slurm.extra.constraint=...",
}


@pytest.mark.parametrize(("name", "message"), MESSAGES.items())
def test_what_cannot_be_submitted_is_said_once(told, name, message):
    ended = told[name]
    assert (ended.status, ended.output) == (2, "")
    assert ended.error == f"error: {message.format(folder=ended.folder)}\n"
    assert not (ended.folder / "submitted").exists()


def test_a_run_that_is_not_to_be_continued_is_not_put_back(told):
    assert told["once"].status == 0
    assert "#SBATCH --no-requeue\n" in script_of(told["once"])


def test_ranks_that_others_started_submit_nothing():
    with pytest.raises(SettingsError) as error:
        in_a_job(compose_run(parse([])).run, Rank(world_size=4, started_by="torchrun"))
    assert str(error.value) == (
        "launch.engine=slurm submits one job, and torchrun gave the command 4 times; "
        "give it as python -m launcher, or leave launch.engine out"
    )


def test_only_what_the_job_knows_is_given_beside_its_file():
    words = (
        "launch.engine=local",
        "launch.nodes=2",
        "launch.processes=4",
        "launch.rdzv_endpoint=n1:7",
        "launch.rdzv_id=7",
    )
    launch = with_words(LaunchConfig(engine="slurm", nodes="1:2"), words)
    assert launch == LaunchConfig("local", 4, 2, rdzv_endpoint="n1:7", rdzv_id="7")
    with pytest.raises(SettingsError, match=r"trainer\.epochs=2: with --job settings come from its file"):
        with_words(launch, ["trainer.epochs=2"])
