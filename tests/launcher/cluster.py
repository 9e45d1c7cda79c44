"""A Slurm cluster of two nodes on this machine, for the length of a test: munged, slurmctld and two slurmd."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
NEEDS = "needs Debian's slurm-wlm and munge, and root to start them"
CAN_START = os.geteuid() == 0 and all(map(shutil.which, COMMANDS))
NODES = ("127.0.0.1", "127.0.0.2")  # names that lead to this machine wherever it is
PATIENCE_S = 240.0

CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=10
NodeName=127.0.0.[1-2] NodeHostname=localhost Port={ports[1]},{ports[2]} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class CannotStartError(Exception):
    """The cluster does not start on this machine."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs; its commands find it by ``environment``."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command):
        """What a command of Slurm prints."""
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def state(self, job):
        """The state of a job, as ``scontrol show job`` has it."""
        facts = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return next(fact.partition("=")[2] for fact in facts if fact.startswith("JobState="))

    def wait(self, job, *states):
        """Wait until a job is in one of the states; returns it."""
        deadline = time.monotonic() + PATIENCE_S
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}, not {' or '.join(states)}"
            time.sleep(0.05)
        return state


@contextmanager
def cluster(folder):
    """Start a cluster whose files are in ``folder``, and stop it after the block.

    Raises:
        CannotStartError: with what the daemons say.
    """
    folder.joinpath("state").mkdir()
    folder.joinpath("slurm.conf").write_text(CONF.format(folder=folder, ports=_free_ports(3)))
    folder.joinpath("munge.key").write_bytes(os.urandom(1024))
    folder.joinpath("munge.key").chmod(0o600)
    found = Cluster(folder, {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")})
    with ExitStack() as stack:
        stack.callback(_stop, folder)
        _start(found, "munged", "--force", *_munge(folder))
        _start(found, "slurmctld", "-i")
        for node in NODES:
            _start(found, "slurmd", "-N", node)
        _wait_for_nodes(found)
        stack.callback(_cancel, found)
        yield found


def _munge(folder):
    names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
    return [f"--{option}={folder / name}" for option, name in {**names, "seed-file": "munged.seed"}.items()]


def _start(found, *command):
    ended = subprocess.run(command, env=found.environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise CannotStartError(f"{command[0]}: {ended.stderr.strip()}")


def _wait_for_nodes(found):
    deadline = time.monotonic() + PATIENCE_S
    while (states := found.run("sinfo", "--noheader", "--format=%t %D")) != f"idle {len(NODES)}":
        if time.monotonic() > deadline:
            raise CannotStartError(f"the nodes stay {states}")
        time.sleep(0.1)


def _cancel(found):
    found.run("scancel", "--partition=main", "--full")
    deadline = time.monotonic() + PATIENCE_S
    while found.run("squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.1)


def _stop(folder):
    """End all daemons; munged, which the others speak by, last."""
    files = [file for file in folder.glob("*.pid") if file.name != "munged.pid"]
    _end(*(int(file.read_text()) for file in files))
    _end(*(int(file.read_text()) for file in folder.glob("munged.pid")))


def _end(*processes):
    found = [psutil.Process(process) for process in processes if psutil.pid_exists(process)]
    for process in found:
        process.terminate()
    for process in psutil.wait_procs(found, PATIENCE_S)[1]:
        process.kill()


def _free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
