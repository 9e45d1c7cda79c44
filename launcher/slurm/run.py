"""One run as a Slurm job: its settings for the job, its script, and what the user is told."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from launcher.configure.command_line import CommandLine
from launcher.configure.compose import Composed, compose_run
from launcher.configure.devices import for_devices
from launcher.configure.given import Given
from launcher.configure.launch import LaunchConfig
from launcher.configure.run_folder import check_run_folder, settle_run_folder
from launcher.configure.schema import RunConfig
from launcher.configure.slurm import slurm_time
from launcher.configure.start import first_rank
from launcher.plan import continued, plan_text
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.slurm.queue import SCRIPT, submit
from launcher.slurm.script import Place, script_text
from launcher.sweep.jobs import Job
from launcher.sweep.order import NAME, leave_order
from samplers.words import counted

OUTPUT = "slurm-%j.out"


def as_a_job(line: CommandLine, composed: Composed, rank: Rank) -> str:
    """Submit a run to Slurm, or show what ``mode=plan`` would submit; returns what the user is told.

    The job finds its settings, as they are now, in a file of the run folder.

    Args:
        line: the command line.
        composed: what it amounts to.
        rank: this process.

    Raises:
        SettingsError: where the run could not start in a job, its folder is not to be used, or Slurm refuses it.
    """
    run = in_a_job(composed.run, rank)
    first = first_rank(run.launch, rank)
    for_now, notes = for_devices(run, first.world_size)
    continues = run.mode in ("train", "plan") and run.checkpoint.resume == "auto"
    notes += continued(run, composed.run_dir) if continues else []
    if run.mode == "plan":
        check_run_folder(composed.run_dir, composed.run_dir_is_new, continues)
        script = script_of(run.launch, composed.run_dir)
        return f"{plan_text(for_now, first, composed.run_dir, [*line.notes, *notes])}\n\n{script}"
    folder = settle_run_folder(composed.run_dir, composed.run_dir_is_new, continues)
    if folder != composed.run_dir:
        run = in_a_job(compose_run(line, folder).run, rank)
    command = Given(str(Path.cwd()), line).to_json()
    leave_order(Job(0, line.overrides, run, folder, composed.chdir, tuple(line.notes), command=command))
    submitted = submit(script_of(run.launch, folder), folder)
    told = told_of(submitted.job, run.launch, folder)
    return "\n".join([*(f"note: {note}" for note in notes), *submitted.said.splitlines(), *told])


def in_a_job(run: RunConfig, rank: Rank) -> RunConfig:
    """The settings with the number of ranks that the job starts on each node: one per GPU that was asked for.

    Raises:
        SettingsError: where torchrun or srun gave the command, or the run could not go on when the job is restarted.
    """
    launch = run.launch
    if rank.started_by != "python":
        raise SettingsError(
            f"launch.engine=slurm submits one job, and {rank.started_by} gave the command {rank.world_size} times; "
            "give it as python -m launcher, or leave launch.engine out"
        )
    if launch.slurm.requeue and run.mode == "train" and run.checkpoint.resume != "auto":
        raise SettingsError(
            f"checkpoint.resume={run.checkpoint.resume} does not let a job continue that was put back into the queue; "
            "set launch.slurm.requeue=false or checkpoint.resume=auto"
        )
    gpus = launch.slurm.gpus
    asked = gpus if gpus and launch.processes in (None, "auto") else launch.processes
    if gpus and asked > gpus and launch.device != "cpu":
        raise SettingsError(
            f"launch.processes={asked} needs {asked} GPUs on each node, and launch.slurm.gpus_per_node="
            f"{launch.slurm.gpus_per_node} asks for {gpus}; leave launch.processes out for one rank per GPU"
        )
    return replace(run, launch=replace(launch, processes=asked or 1))


def script_of(launch: LaunchConfig, folder: Path) -> str:
    """The script of the run in ``folder``.

    Raises:
        SettingsError: for a path that sbatch cannot take.
    """
    return script_text(launch, folder / NAME, Place(folder, OUTPUT, Path.cwd()), sys.executable)


def told_of(job: str, launch: LaunchConfig, folder: Path) -> list[str]:
    """What the user is told of a job that Slurm took, line by line."""
    script, output = folder / SCRIPT, folder / OUTPUT.replace("%j", job)
    return [
        f"Slurm job        {job}: {size_of(launch)}",
        f"script           {script}",
        f"output           {output}",
        f"run folder       {folder}",
        f"follow it        squeue --jobs={job}; tail -F {shlex.quote(str(output))}",
        f"continue it      sbatch {shlex.quote(str(script))}",
    ]


def size_of(launch: LaunchConfig) -> str:
    """How much of the cluster a job takes, and for how long at most.

    >>> from launcher.configure.slurm import SlurmConfig
    >>> size_of(LaunchConfig(engine="slurm", nodes="2:4", processes=8, slurm=SlurmConfig(time=90)))
    '2 to 4 nodes, 8 ranks on each, at most 0-01:30:00'
    """
    least, most = launch.nodes_range
    nodes = counted(least, "node") if least == most else f"{least} to {most} nodes"
    seconds = launch.slurm.time_s
    limit = f", at most {slurm_time(seconds)}" if seconds else ""
    return f"{nodes}, {counted(int(launch.processes or 1), 'rank')}{' on each' if most > 1 else ''}{limit}"
