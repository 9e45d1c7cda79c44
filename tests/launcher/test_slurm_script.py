"""What is written into an sbatch script, and how it behaves in bash, with stand-ins for Slurm's commands."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.configure.launch import LaunchConfig
from launcher.configure.slurm import SlurmConfig, seconds_of
from launcher.processes.errors import SettingsError
from launcher.slurm.script import Place, array_script, script_text
from tests.launcher.test_signals import catches, wait_for

PLACE = Place(Path("/runs/first"), "slurm-%j.out", Path("/home/you"))
SLURM = SlurmConfig(
    partition="gpu",
    account="lab",
    qos="high",
    time="1-12:00:00",
    gpus_per_node="a100:4",
    cpus_per_task=32,
    mem="64G",
    signal_before_s=300,
    setup=["module load cuda", "export NCCL_DEBUG=WARN"],
    extra={"constraint": "a100&ib", "exclusive": True, "open-mode": None, "comment": 'a "b"'},
)
TWO_NODES = LaunchConfig(engine="slurm", nodes=2, processes=4, slurm=SLURM)

FULL = r"""#!/bin/bash
#SBATCH --job-name=evenshard
#SBATCH --output=/runs/first/slurm-%j.out
#SBATCH --chdir=/home/you
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --time=1-12:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH "--constraint=a100&ib"
#SBATCH --exclusive
#SBATCH "--comment=a \"b\""

set -e
module load cuda
export NCCL_DEBUG=WARN
set +e

command=(
  /opt/venv/bin/python -m launcher --job '/runs/a b/job.json'
  launch.engine=local launch.nodes="$SLURM_NNODES" launch.processes=4
)

if [ "$SLURM_NNODES" -gt 1 ]; then  # they meet at the first, at a port that two jobs on one node rarely share
  host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  port=$((20000 + SLURM_JOB_ID % 12000))
  command+=(launch.rdzv_endpoint="$host:$port" launch.rdzv_id="$SLURM_JOB_ID")
fi

# One task per node starts the ranks of its node; a rank itself is none of srun's tasks.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=32 --cpu-bind=none \
  --kill-on-bad-exit=0 env --unset=SLURM_PROCID "${command[@]}" &
step=$!
trap 'kill -USR1 "$step"' USR1 TERM  # srun would kill the ranks at SIGTERM, and passes SIGUSR1 on to them
while kill -0 "$step" 2> /dev/null; do wait "$step"; done
wait "$step"
status=$?

# Told to stop, with a checkpoint: back into the queue, to continue there; not where somebody cancelled the job.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}
if [ "$status" = 75 ] && [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]; then
  echo "job $job is put back into the queue, and continues there"
  scontrol requeue "$job"
fi
exit "$status"
"""


def text_of(launch=TWO_NODES, place=PLACE, order="/runs/a b/job.json"):
    return script_text(launch, Path(order), place, "/opt/venv/bin/python")


def options_of(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_the_whole_script():
    assert text_of() == FULL


def test_what_is_not_set_is_left_to_the_cluster():
    text = text_of(LaunchConfig(engine="slurm", slurm=SlurmConfig(requeue=False, signal_before_s=None)))
    assert options_of(text) == [
        "--job-name=evenshard",
        "--output=/runs/first/slurm-%j.out",
        "--open-mode=append",
        "--chdir=/home/you",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--no-requeue",
    ]
    assert 'launch.nodes="$SLURM_NNODES" launch.processes=1\n' in text
    assert not any(word in text for word in ("set -e", "rdzv", "scontrol", "cpus-per-task"))


def test_a_range_of_nodes_is_slurms_to_choose_from():
    text = text_of(LaunchConfig(engine="slurm", nodes="1:4"))
    assert "--nodes=1-4" in options_of(text)
    assert "launch.rdzv_endpoint=" in text


def test_a_place_to_meet_of_ones_own_is_taken():
    assert "rdzv" not in text_of(LaunchConfig(engine="slurm", nodes=2, rdzv_endpoint="there:29400"))


def test_odd_paths_are_written_as_sbatch_reads_them():
    place = replace(PLACE, folder=Path('/runs/50% "a" b#c$HOME\\n (ü)'))
    (output,) = [option for option in options_of(text_of(place=place)) if "--output" in option]
    assert output == r'"--output=/runs/50%% \"a\" b#c$HOME\\n (ü)/slurm-%j.out"'
    with pytest.raises(SettingsError, match="sbatch takes no line breaks"):
        text_of(place=replace(PLACE, folder=Path("/runs/a\nb")))


def test_an_array_has_a_task_for_each_job():
    orders = {7: Path("/sweep/a b/job.json"), **{n: Path(f"/sweep/{n}/job.json") for n in range(4)}}
    text = array_script(TWO_NODES, orders, 4, replace(PLACE, output="slurm-%A_%a.out"), "/opt/venv/bin/python")
    assert {"--array=0-3,7%4", "--output=/runs/first/slurm-%A_%a.out"} <= set(options_of(text))
    assert "--array=0-3,7" in options_of(array_script(TWO_NODES, orders, None, PLACE, "python"))
    start = text[text.index("orders=(") : text.index("\nif ")]
    for number, order in orders.items():
        found = in_bash(start, SLURM_ARRAY_TASK_ID=str(number), SLURM_NNODES="2")
        assert found[:5] == ["/opt/venv/bin/python", "-m", "launcher", "--job", str(order)]


def in_bash(start, **environment):
    """The words of the command that a piece of the script makes."""
    found = subprocess.run(
        ["bash", "-c", os.fsencode(f'{start}\nprintf "%s\\0" "${{command[@]}}"')],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )
    return [os.fsdecode(word) for word in found.stdout.split(b"\0")[:-1]]


ODD = [
    "hydra 'out'/a=1,b=2 (x)",
    "$HOME ${x} `id` $(id) !! \\ \\n ~ * ?",
    "zwei\nZeilen\r\nund\tmehr 'so'",
    "#SBATCH --partition=other",
    "\nEOF\n#SBATCH --time=1\n",
    "größe=µ漢字🙂",
    "\udcff not utf-8",
    "-m",
]


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_the_name_of_the_file_reaches_the_job_as_it_is(name):
    check_name(name)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_reach_the_job_as_they_are(name):
    check_name(name)


def check_name(name):
    order = str(Path("/runs", name))
    text = text_of(order=order)
    assert "\r" not in text
    assert options_of(text) == options_of(FULL)
    start = text[text.index("command=(") : text.index("\nif ")]
    found = in_bash(start, SLURM_NNODES="3")
    assert found[3:] == ["--job", order, "launch.engine=local", "launch.nodes=3", "launch.processes=4"]


STAND_INS = {
    "srun": 'while [ "$1" != env ]; do shift; done\nexec "$@"',
    "squeue": 'echo "${STATE:-RUNNING}"',
    "scontrol": 'if [ "$1" = show ]; then printf "first\\nsecond\\n"; else echo "$*" >> told; fi',
}
TASK = """
import os, signal, sys, time
def stop(number, _):
    sys.exit(75)
signal.signal(signal.SIGUSR1, stop)
print("SLURM_PROCID" in os.environ, *sys.argv[3:], flush=True)
time.sleep(float(os.environ["SECONDS_TO_WORK"]))
sys.exit(int(os.environ["STATUS"]))
"""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A folder of commands that behave as Slurm's do towards the script."""
    folder = tmp_path_factory.mktemp("bin")
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "python").write_text(f"#!{sys.executable}\n{TASK}")
    (folder / "python").chmod(0o755)
    return folder


def start(folder, stand_ins, launch=TWO_NODES, **environment):
    """Start a script as a job would, on a stand-in for the launcher."""
    launch = replace(launch, slurm=replace(SLURM, setup=["echo set up"], python=str(stand_ins / "python")))
    script = folder / "slurm.sh"
    script.write_text(text_of(replace(launch, slurm=replace(launch.slurm, **environment.pop("slurm", {})))))
    given = {"SLURM_JOB_ID": "12001", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0"}
    return subprocess.Popen(
        ["bash", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{stand_ins}:{os.environ['PATH']}",
            "STATUS": "0",
            "SECONDS_TO_WORK": "0",
            **given,
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(folder):
    return (folder / "told").read_text() if (folder / "told").exists() else ""


def test_the_job_starts_the_launcher_with_a_place_to_meet(tmp_path, stand_ins):
    output, error = start(tmp_path, stand_ins).communicate()
    assert output == (
        "set up\n"
        "False --job /runs/a b/job.json launch.engine=local launch.nodes=2 launch.processes=4 "
        "launch.rdzv_endpoint=first:20001 launch.rdzv_id=12001\n"
    )
    assert (error, told(tmp_path)) == ("", "")


@pytest.mark.parametrize(
    ("status", "state", "requeue", "expected"),
    [
        ("0", "RUNNING", True, ""),
        ("1", "RUNNING", True, ""),
        ("2", "RUNNING", True, ""),
        ("75", "RUNNING", True, "requeue 12001\n"),
        ("75", "COMPLETING", True, ""),
        ("75", "RUNNING", False, ""),
    ],
)
def test_only_a_preempted_run_goes_back_into_the_queue(tmp_path, stand_ins, status, state, requeue, expected):
    job = start(tmp_path, stand_ins, STATUS=status, STATE=state, slurm={"requeue": requeue})
    output, _ = job.communicate()
    assert job.returncode == int(status)
    assert told(tmp_path) == expected
    assert ("is put back" in output) == bool(expected)


def test_of_an_array_only_the_task_goes_back(tmp_path, stand_ins):
    start(tmp_path, stand_ins, STATUS="75", SLURM_ARRAY_JOB_ID="12001", SLURM_ARRAY_TASK_ID="3").communicate()
    assert told(tmp_path) == "requeue 12001_3\n"


def test_a_job_of_one_node_needs_no_place_to_meet(tmp_path, stand_ins):
    output, _ = start(tmp_path, stand_ins, SLURM_NNODES="1").communicate()
    assert "rdzv" not in output


def test_nothing_starts_where_the_set_up_fails(tmp_path, stand_ins):
    job = start(tmp_path, stand_ins, slurm={"setup": ["echo here", "false", "echo there"]})
    assert job.communicate() == ("here\n", "")
    assert job.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_signals_to_the_script_reach_the_run(tmp_path, stand_ins, number):
    job = start(tmp_path, stand_ins, SECONDS_TO_WORK="60")
    assert job.stdout.readline() == "set up\n"
    job.stdout.readline()  # the run has begun
    wait_for(lambda: catches(job, number))
    job.send_signal(number)
    job.communicate()
    assert job.returncode == 75
    assert told(tmp_path) == "requeue 12001\n"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("2-0", 172_800), ("1-12:30", 131_400), ("0-0:10:05", 605)],
)
def test_times_in_slurms_form(time, seconds):
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time": "soon"}, "launch.slurm.time=soon is no time: give minutes, or text such as 1:30:00"),
        ({"time": 0}, "launch.slurm.time=0 is no time at all; null leaves it to the cluster"),
        (
            {"time": 3},
            "launch.slurm.time=3 leaves no time to train: launch.slurm.signal_before_s=120 stops the run up to 180 s",
        ),
        ({"signal_before_s": 0}, "launch.slurm.signal_before_s=0 is outside 1 .. 65535; null sends no signal"),
        ({"cpus_per_task": 0}, "launch.slurm.cpus_per_task=0 is too small: the least is 1"),
        ({"gpus_per_node": "many"}, "launch.slurm.gpus_per_node=many is neither a number above 0 nor TYPE:NUMBER"),
        ({"extra": {"nodes": 3}}, "launch.slurm.extra.nodes=3: --nodes is set by launch.nodes"),
        ({"extra": {"gpus-per-node": 3}}, "--gpus-per-node is set by launch.slurm.gpus_per_node"),
        ({"extra": {"--mail": 3}}, "launch.slurm.extra.--mail=3 is no option of sbatch: write it as sbatch does"),
        ({"extra": {"mail-user": ["a"]}}, "launch.slurm.extra.mail-user=['a'] is no text, number, true or false"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        SlurmConfig(**settings)
    assert message in str(error.value)
