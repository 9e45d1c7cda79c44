"""Which process this is: read once, from torchrun's variables, from Slurm's, or from neither."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from launcher.processes.errors import SettingsError

OWN_LAUNCHER = "evenshard"
"""The role of ranks that ``launch.processes`` or a sweep started."""
LAUNCHER = "EVENSHARD_LAUNCHER"
"""The process that starts a rank of ours: it may be gone before the rank can ask who its parent is."""
STARTED_WITH = (LAUNCHER, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STARTED_BY = ("TORCHELASTIC_", "GROUP_", "ROLE_")
SLURM_PORTS = range(20_000, 32_000)  # below those that the system hands out


@dataclass(frozen=True)
class Rank:
    """This process among the processes of the run, counted as ``torch.distributed`` counts.

    Attributes:
        rank: 0 .. world_size - 1 over all nodes.
        world_size: processes in all.
        local_rank: 0 .. local_world_size - 1 on this node; the index of its device.
        local_world_size: processes on this node.
        host: address of the store that the ranks meet at; empty for a single process.
        port: port of that store.
        started_by: ``torchrun``, ``slurm``, ``launcher`` (by launch.processes) or ``python``.
        attempt: how often the ranks of the run were started before.
        restarts: how often the elastic agent of this node has restarted its ranks because some failed.
        max_restarts: how often it will at most.
        own_cores: cores that are this rank's alone; 0: those of the node are shared.
        store_outlives_ranks: whether the store is kept by torchrun's agent rather than by rank 0.
        has_launcher: whether the process that started this one watches over it, and is to be outlived by no rank.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    host: str = ""
    port: int = 0
    started_by: str = "python"
    attempt: int = 0
    store_outlives_ranks: bool = False
    own_cores: int = 0
    has_launcher: bool = False
    max_restarts: int = 0
    restarts: int = 0

    @property
    def has_agent(self) -> bool:
        """Whether one of torch's elastic agents started it, torchrun's or our own."""
        return self.started_by in ("torchrun", "launcher")

    @property
    def one_node(self) -> bool:
        """Whether all ranks run on this node."""
        return self.local_world_size == self.world_size

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Rank:
        """Read the rank from ``environment``.

        Raises:
            SettingsError: where the variables are incomplete or not numbers.
        """
        if "RANK" in environment or "WORLD_SIZE" in environment:
            return _from_torchrun(environment)
        if (
            "SLURM_PROCID" in environment
            and "SLURM_STEP_ID" in environment
            and _number(environment, "SLURM_NTASKS") > 1
        ):
            return _from_slurm(environment)
        return cls()


def _from_torchrun(environment: Mapping[str, str]) -> Rank:
    world_size = _number(environment, "WORLD_SIZE")
    rank = _number(environment, "RANK")
    if not 0 <= rank < world_size:
        raise SettingsError(f"RANK={rank} is outside 0 <= RANK < WORLD_SIZE={world_size}; start ranks with torchrun")
    return Rank(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "LOCAL_RANK"),
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", default=world_size),
        host=_text(environment, "MASTER_ADDR"),
        port=_number(environment, "MASTER_PORT"),
        started_by="launcher" if environment.get("ROLE_NAME") == OWN_LAUNCHER else "torchrun",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
        store_outlives_ranks=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        has_launcher="TORCHELASTIC_RUN_ID" in environment,
        max_restarts=_number(environment, "TORCHELASTIC_MAX_RESTARTS", default=0),
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
    )


def _from_slurm(environment: Mapping[str, str]) -> Rank:
    nodes = _number(environment, "SLURM_STEP_NUM_NODES", default=_number(environment, "SLURM_NNODES", default=1))
    job = _number(environment, "SLURM_JOB_ID", default=0) * 7 + _number(environment, "SLURM_STEP_ID")
    node = _number(environment, "SLURM_NODEID", default=0)
    tasks = _tasks_per_node(_text(environment, "SLURM_STEP_TASKS_PER_NODE"))
    rank, world_size = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS")
    if not 0 <= rank < world_size:
        raise SettingsError(f"SLURM_PROCID={rank} is outside 0 <= SLURM_PROCID < SLURM_NTASKS={world_size}; use srun")
    hosts = environment.get("SLURM_STEP_NODELIST") or _text(environment, "SLURM_JOB_NODELIST")
    return Rank(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "SLURM_LOCALID"),
        local_world_size=tasks[node] if node < len(tasks) else 1,
        host=environment.get("MASTER_ADDR") or ("127.0.0.1" if nodes == 1 else _first_host(hosts)),
        port=_number(environment, "MASTER_PORT", default=SLURM_PORTS[job % len(SLURM_PORTS)]),
        started_by="slurm",
        attempt=_number(environment, "SLURM_RESTART_COUNT", default=0),
        own_cores=_number(environment, "SLURM_CPUS_PER_TASK", default=0),
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise SettingsError(
            f"the environment variable {name} is not set; start several processes with torchrun or srun"
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environment.get(name):
        return default
    text = _text(environment, name)
    if not re.fullmatch(r"-?\d+", text):
        raise SettingsError(f"the environment variable {name}={text!r} is not a whole number")
    return int(text)


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's ``"2(x3),1"`` as ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def _first_host(nodes: str) -> str:
    """The first host of Slurm's ``"gpu[03-05,9]-ib,cpu1"``: ``"gpu03-ib"``."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


@dataclass(frozen=True)
class World:
    """The ranks of a job and the store that they meet at.

    Attributes:
        size: ranks in all.
        host: address of the store.
        port: of the store.
        attempt: how often they were started before.
        max_restarts: how often they will be at most.
    """

    size: int
    host: str
    port: int
    attempt: int = 0
    max_restarts: int = 0

    def variables(self, rank: int, local_rank: int, local_world_size: int) -> dict[str, str]:
        """What a rank finds in its environment: what an elastic agent of torch sets, whose part the sweep takes."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_world_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "ROLE_NAME": OWN_LAUNCHER,
            LAUNCHER: str(os.getpid()),
            "TORCHELASTIC_RUN_ID": "sweep",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
        }


def take_launcher(environment: MutableMapping[str, str]) -> int:
    """The process that started this one, which may be gone by now; what this one starts is not told of it."""
    return int(environment.pop(LAUNCHER, "") or os.getppid())


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a job's processes take over from this one: all but how this one was itself started."""
    return {k: v for k, v in environment.items() if k not in STARTED_WITH and not k.startswith(STARTED_BY)}
