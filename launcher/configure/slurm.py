"""The settings of a Slurm job, in Slurm's own words where it has one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from launcher.processes.errors import SettingsError, at_least

ENGINES = ("local", "slurm")
TIME = re.compile(r"(?:(?P<d>\d+)-)?(?P<a>\d+)(?::(?P<b>\d+))?(?::(?P<c>\d+))?")
UNLIMITED = ("UNLIMITED", "INFINITE")
EARLY_S = 60
"""Slurm looks at its clock once a minute: signals come up to so many seconds earlier than asked for."""
MOST_S = 65_535
OPTION = re.compile(r"[a-z][a-z0-9-]*")
SET_ELSEWHERE = {
    **{name: f"launch.slurm.{name.replace('-', '_')}" for name in ("partition", "account", "qos", "time", "mem")},
    **{name: f"launch.slurm.{name.replace('-', '_')}" for name in ("gpus-per-node", "cpus-per-task", "requeue")},
    "no-requeue": "launch.slurm.requeue",
    "signal": "launch.slurm.signal_before_s",
    "nodes": "launch.nodes",
    "ntasks": "launch.processes",
    "ntasks-per-node": "launch.processes",
    "output": "hydra.run.dir",
    "array": "a sweep",
    "chdir": "the folder that the command is given in",
}
"""Options of sbatch that have a setting of their own here, and which."""


@dataclass
class SlurmConfig:
    """The Slurm job that launch.engine=slurm submits; null: what the cluster has for it.

    Attributes:
        partition: in which the job waits.
        account: that is charged for it.
        qos: its quality of service.
        time: limit of the job, in minutes or as text in Slurm's form, such as "1-12:00:00"; quoted, since YAML reads
            1:30:00 as a number.
        gpus_per_node: a number, or TYPE:NUMBER; so many ranks start on each node unless launch.processes is set.
        cpus_per_task: cores of a node; its one task starts all ranks of the node.
        mem: memory of a node, such as 64G.
        signal_before_s: seconds before the end of its time at which the job is told to stop, keeping a checkpoint;
            null: Slurm tells it at the end, some seconds before it kills.
        requeue: whether the job is put back into the queue when it was told to stop, or a node failed, to continue.
        setup: lines of bash before the ranks start, such as "module load cuda".
        python: the interpreter on the nodes; null: the one that submits.
        extra: further options of sbatch, such as {constraint: a100, exclusive: true}.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: Any = None
    gpus_per_node: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    signal_before_s: int | None = 120
    requeue: bool = True
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting by itself, and that the signal leaves time for some work."""
        at_least("launch.slurm.cpus_per_task", self.cpus_per_task, 1)
        if self.signal_before_s is not None and not 1 <= self.signal_before_s <= MOST_S:
            raise SettingsError(
                f"launch.slurm.signal_before_s={self.signal_before_s} is outside 1 .. {MOST_S}; null sends no signal"
            )
        if self.gpus_per_node is not None and not re.fullmatch(r"([\w.-]+:)?[1-9]\d*", self.gpus_per_node):
            raise SettingsError(
                f"launch.slurm.gpus_per_node={self.gpus_per_node} is neither a number above 0 nor TYPE:NUMBER"
            )
        self._check_time()
        self._check_extra()

    @property
    def time_s(self) -> int | None:
        """The limit in seconds; None: that of the cluster, or none."""
        return None if self.time is None or str(self.time).upper() in UNLIMITED else seconds_of(str(self.time))

    @property
    def gpus(self) -> int:
        """GPUs of a node; 0: none was asked for."""
        return int((self.gpus_per_node or "0").rpartition(":")[2])

    def _check_time(self) -> None:
        signal_s, time_s = self.signal_before_s, self.time_s
        if signal_s is not None and time_s is not None and time_s <= signal_s + EARLY_S:
            raise SettingsError(
                f"launch.slurm.time={self.time} leaves no time to train: launch.slurm.signal_before_s={signal_s} stops "
                f"the run up to {signal_s + EARLY_S} seconds before the end; lower it or raise launch.slurm.time"
            )

    def _check_extra(self) -> None:
        for name, value in self.extra.items():
            option = f"launch.slurm.extra.{name}"
            if name in SET_ELSEWHERE:
                raise SettingsError(f"{option}={value}: --{name} is set by {SET_ELSEWHERE[name]}")
            if not OPTION.fullmatch(name):
                raise SettingsError(f"{option}={value} is no option of sbatch: write it as sbatch does, without dashes")
            if isinstance(value, dict | list):
                raise SettingsError(f"{option}={value} is no text, number, true or false")


def seconds_of(time: str) -> int:
    """The seconds of a time in Slurm's form: MIN, MIN:SEC, HOURS:MIN:SEC, DAYS-HOURS, DAYS-HOURS:MIN[:SEC].

    Raises:
        SettingsError: for another form, or no time at all.

    >>> [seconds_of(text) for text in ("90", "90:30", "1:30:00", "2-0", "1-12:30")]
    [5400, 5430, 5400, 172800, 131400]
    """
    found = TIME.fullmatch(time)
    if found is None:
        raise SettingsError(
            f"launch.slurm.time={time} is no time: give minutes, or text such as 1:30:00 (hours) or 1-12:00:00 (days)"
        )
    days, *parts = (int(part or 0) for part in found.groups())
    if found["d"] is None and found["c"] is None:  # MIN or MIN:SEC
        parts = [0, *parts[:2]]
    hours, minutes, seconds = parts
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise SettingsError(f"launch.slurm.time={time} is no time at all; null leaves it to the cluster")
    return total


def slurm_time(seconds: int) -> str:
    """Seconds in Slurm's form.

    >>> slurm_time(131_400)
    '1-12:30:00'
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"
