"""The text of an sbatch script: what Slurm is asked for, and how the ranks of a run start and end inside the job.

Each node runs one task, the launcher, which starts the node's ranks with torch's elastic agent as torchrun does.
torchrun itself dies of SIGUSR1 and turns exit status 75 into 1; the launcher passes signals on to its ranks, lets them
take the time that a checkpoint needs, and ends as they do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.configure.launch import LaunchConfig
from launcher.configure.slurm import slurm_time
from launcher.processes.errors import PREEMPTED, SettingsError
from launcher.sweep.words import ranges

PLAIN = re.compile(r"[\w./:=,+@%-]+", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PORTS = (20_000, 12_000)
"""The first port at which nodes meet, and how many: below those that the system hands out."""

MEETING = f"""\
if [ "$SLURM_NNODES" -gt 1 ]; then  # they meet at the first, at a port that two jobs on one node rarely share
  host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  port=$(({PORTS[0]} + SLURM_JOB_ID % {PORTS[1]}))
  command+=(launch.rdzv_endpoint="$host:$port" launch.rdzv_id="$SLURM_JOB_ID")
fi
"""

START = """\
# One task per node starts the ranks of its node; a rank itself is none of srun's tasks.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 {cpus}--cpu-bind=none \\
  --kill-on-bad-exit=0 env --unset=SLURM_PROCID "${{command[@]}}" &
step=$!
trap 'kill -USR1 "$step"' USR1 TERM  # srun would kill the ranks at SIGTERM, and passes SIGUSR1 on to them
while kill -0 "$step" 2> /dev/null; do wait "$step"; done
wait "$step"
status=$?
"""

REQUEUE = f"""\
# Told to stop, with a checkpoint: back into the queue, to continue there; not where somebody cancelled the job.
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_}}${{SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}}
if [ "$status" = {PREEMPTED} ] && [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]; then
  echo "job $job is put back into the queue, and continues there"
  scontrol requeue "$job"
fi
"""


@dataclass(frozen=True)
class Place:
    """Where a job lives.

    Attributes:
        folder: for the script and what the job prints.
        output: name of the file with what it prints, with Slurm's own patterns such as %j.
        working_dir: the folder that the command was given in.
    """

    folder: Path
    output: str
    working_dir: Path


def script_text(launch: LaunchConfig, order: Path, place: Place, python: str) -> str:
    """The script of one run.

    Args:
        launch: the settings.
        order: the file with all settings of the run.
        place: of the job.
        python: the interpreter that submits.

    Raises:
        SettingsError: for a path that sbatch cannot take.
    """
    return _script(launch, place, {}, _command(launch, python, _quoted(str(order))))


def array_script(
    launch: LaunchConfig, orders: Mapping[int, Path], parallel: int | None, place: Place, python: str
) -> str:
    """The script of an array of runs, one task of the array for each.

    Args:
        launch: the settings, which the runs share.
        orders: number of a run -> the file with all its settings.
        parallel: runs at a time; None: as many as Slurm has room for.
        place: of the array.
        python: the interpreter that submits.

    Raises:
        SettingsError: for a path that sbatch cannot take.
    """
    tasks = ranges(map(str, sorted(orders))) + (f"%{parallel}" if parallel else "")
    files = "".join(f"  [{number}]={_quoted(str(order))}\n" for number, order in orders.items())
    command = _command(launch, python, '"${orders[$SLURM_ARRAY_TASK_ID]}"')
    return _script(launch, place, {"array": tasks}, f"orders=(\n{files})\n{command}")


def _script(launch: LaunchConfig, place: Place, more: Mapping[str, Any], command: str) -> str:
    slurm = launch.slurm
    options = "".join(_directive(*option) for option in _options(launch, place, more).items())
    parts = [
        f"#!/bin/bash\n{options}",
        "\n".join(["set -e", *slurm.setup, "set +e", ""]) if slurm.setup else "",
        command,
        MEETING if launch.nodes_range[1] > 1 and launch.rdzv_endpoint is None else "",
        START.format(cpus=f"--cpus-per-task={slurm.cpus_per_task} " if slurm.cpus_per_task else ""),
        (REQUEUE if slurm.requeue else "") + 'exit "$status"\n',
    ]
    return "\n".join(part for part in parts if part)


def _options(launch: LaunchConfig, place: Place, more: Mapping[str, Any]) -> dict[str, Any]:
    """Options of sbatch: a value, or true for one without; null or false: left out."""
    slurm, (least, most) = launch.slurm, launch.nodes_range
    signal_s = slurm.signal_before_s
    return {
        "job-name": "evenshard",
        "output": f"{str(place.folder).replace('%', '%%')}/{place.output}",
        "open-mode": "append",
        "chdir": place.working_dir,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": None if slurm.time is None else slurm_time(slurm.time_s) if slurm.time_s else "UNLIMITED",
        "nodes": least if least == most else f"{least}-{most}",
        "ntasks-per-node": 1,
        "gpus-per-node": slurm.gpus_per_node,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "signal": f"USR1@{signal_s}" if signal_s else None,
        "requeue" if slurm.requeue else "no-requeue": True,
        **more,
        **slurm.extra,
    }


def _directive(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    text = f"--{name}" if value is True else f"--{name}={value}"
    if CONTROL.search(text):
        raise SettingsError(f"{text!r}: sbatch takes no line breaks and tabs; choose another name")
    return f"#SBATCH {text if PLAIN.fullmatch(text) else _in_quotes(text)}\n"


def _in_quotes(text: str) -> str:
    """As sbatch reads it: between double quotes, where a backslash stands before what is meant as it is."""
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _command(launch: LaunchConfig, python: str, order: str) -> str:
    """The start of the launcher: ``order``, in bash, is the file with its settings."""
    return f"""\
command=(
  {_quoted(launch.slurm.python or python)} -m launcher --job {order}
  launch.engine=local launch.nodes="$SLURM_NNODES" launch.processes={launch.processes or launch.slurm.gpus or 1}
)
"""


def _quoted(word: str) -> str:
    """A word of bash that stands for exactly this text; line breaks are written as escapes, which sbatch asks for."""
    if not CONTROL.search(word):
        return shlex.quote(word)
    escaped = re.sub(r"['\\]", r"\\\g<0>", word)
    return "$'" + CONTROL.sub(lambda found: f"\\{ord(found[0]):03o}", escaped) + "'"
