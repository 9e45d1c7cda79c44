"""The settings of the processes: how many, on how many nodes, and where those meet."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from launcher.configure.slurm import ENGINES, SlurmConfig
from launcher.processes.errors import SettingsError, at_least, closest, one_of

BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
MEETINGS = ("c10d", "static", "etcd-v2", "etcd")
STREAMS = (0, 1, 2, 3)
NODES = re.compile(r"(\d+)(?::(\d+))?")
ENDPOINT = re.compile(r"(?:\[[\w.:]+\]|[\w.-]+)(?::(\d{1,5}))?")
CONF = {
    "c10d": (
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "read_timeout",
        "is_host",
        "store_type",
        "timeout",
    ),
    "static": ("timeout",),
}
"""What torch reads from ``--rdzv-conf``; it says nothing of a word that it does not know."""
BETWEEN_NODES = ("rdzv_endpoint", "rdzv_backend", "rdzv_id", "rdzv_conf", "node_rank", "local_addr")


@dataclass
class LaunchConfig:
    """The processes.

    Attributes:
        engine: local, or slurm: the run becomes a job of a Slurm cluster, as launch.slurm says.
        processes: ranks to start on this node; auto: one per CUDA device, one where there is none; null: those that
            torchrun or Slurm started, else one.
        nodes: machines that take part, each of which is given this command, or "MIN:MAX" for as many as come; as
            torchrun's --nnodes.
        rdzv_endpoint: HOST:PORT at which the nodes meet, HOST one of them; the same on all of them.
        rdzv_backend: how the nodes meet: c10d, static, etcd-v2 or etcd; null: c10d.
        rdzv_id: what tells apart runs that meet at the same place; the same on all nodes.
        rdzv_conf: further settings of rdzv_backend, as torchrun's --rdzv-conf, such as {join_timeout: 900}, in seconds;
            null: none.
        node_rank: 0 .. nodes - 1, which of the nodes this is, for rdzv_backend=static; node 0 is at rdzv_endpoint.
        local_addr: address of this node for the others; null: the one from which it reaches rdzv_endpoint.
        max_restarts: how often the ranks that launch.processes starts are started again when one fails; torchrun has
            its own --max-restarts.
        monitor_interval_s: seconds between two looks at the ranks that launch.processes started.
        log_dir: folder for what each rank prints; null: it is shown only.
        redirects: what of it goes to log_dir and is not shown: 0 nothing, 1 stdout, 2 stderr, 3 both.
        tee: what of it goes to log_dir and is shown too, each line with its rank: 0 nothing, 1 stdout, 2 stderr,
            3 both; null: whatever redirects leaves.
        threads_per_rank: threads that each rank computes with; null: usable cores / ranks of the node,
            and 1 with batch.exact=true.
        backend: auto (nccl on CUDA, gloo on CPU), gloo or nccl.
        device: auto, cpu or cuda.
        timeout_s: seconds after which a collective that does not end is an error, and a rank that does not answer is
            named.
        slurm: the job that engine=slurm submits.
    """

    engine: str = "local"
    processes: Any = None
    nodes: Any = 1
    rdzv_endpoint: str | None = None
    rdzv_backend: str | None = None
    rdzv_id: str | None = None
    rdzv_conf: Any = None
    node_rank: int | None = None
    local_addr: str | None = None
    max_restarts: int = 0
    monitor_interval_s: float = 0.1
    log_dir: str | None = None
    redirects: int = 0
    tee: int | None = None
    threads_per_rank: int | None = None
    backend: str = "auto"
    device: str = "auto"
    timeout_s: float = 600.0
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

    def __post_init__(self) -> None:
        """Check every setting by itself, and what the nodes need to meet."""
        if self.processes not in (None, "auto"):
            if type(self.processes) is not int:
                raise SettingsError(f"launch.processes={self.processes} is no number of processes; or set auto or null")
            at_least("launch.processes", self.processes, 1)
        at_least("launch.max_restarts", self.max_restarts, 0)
        at_least("launch.monitor_interval_s", self.monitor_interval_s, 0.01)
        at_least("launch.threads_per_rank", self.threads_per_rank, 1)
        at_least("launch.timeout_s", self.timeout_s, 1)
        one_of("launch.engine", self.engine, ENGINES)
        one_of("launch.backend", self.backend, BACKENDS)
        one_of("launch.device", self.device, DEVICES)
        if self.backend == "nccl" and self.device == "cpu":
            raise SettingsError("launch.backend=nccl needs CUDA devices, launch.device=cpu has none; use gloo")
        self._check_logs()
        if self.nodes_range[1] == 1:
            self._check_one_node()
        elif self.engine == "local" or self.rdzv_endpoint:  # the job of the other knows where its nodes meet
            self._check_meeting()

    @property
    def nodes_range(self) -> tuple[int, int]:
        """The fewest and the most nodes."""
        found = NODES.fullmatch(str(self.nodes))
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most:
            raise SettingsError(
                f"launch.nodes={self.nodes} is neither a number of nodes nor a range MIN:MAX with 1 <= MIN <= MAX"
            )
        return least, most

    @property
    def streams(self) -> tuple[int, int]:
        """``redirects`` and ``tee`` as numbers: what goes to ``log_dir``, and what of that is shown too."""
        tee = self.tee if self.tee is not None else 3 & ~self.redirects if self.log_dir else 0
        return self.redirects, tee

    def _check_logs(self) -> None:
        for name, value in (("redirects", self.redirects), ("tee", self.tee)):
            if value is not None and value not in STREAMS:
                raise SettingsError(f"launch.{name}={value} is none of 0 (nothing), 1 (stdout), 2 (stderr), 3 (both)")
            if value and not self.log_dir:
                raise SettingsError(f"launch.{name}={value} needs a folder for what ranks print; set launch.log_dir")
        if self.log_dir and self.streams == (0, 0):
            raise SettingsError(
                f"launch.log_dir={self.log_dir} would stay empty with launch.redirects=0 and launch.tee=0; leave "
                "launch.tee out"
            )

    def _check_one_node(self) -> None:
        for name in BETWEEN_NODES:
            value = getattr(self, name)
            if value is not None:
                raise SettingsError(
                    f"launch.{name}={value} is for several nodes, and launch.nodes={self.nodes} is one; leave it out "
                    "or set launch.nodes"
                )

    def _check_meeting(self) -> None:
        backend, (least, most) = self.meeting, self.nodes_range
        one_of("launch.rdzv_backend", backend, MEETINGS)
        self._check_conf()
        self._check_endpoint()
        if backend == "static":
            if least != most:
                raise SettingsError(
                    f"launch.rdzv_backend=static must know how many nodes come, and launch.nodes={self.nodes} is a "
                    "range; set one number or launch.rdzv_backend=c10d"
                )
            if self.node_rank is None or not 0 <= self.node_rank < most:
                found = "is missing" if self.node_rank is None else f"{self.node_rank} is outside 0 .. {most - 1}"
                raise SettingsError(
                    f"launch.node_rank {found}: launch.rdzv_backend=static needs it on each of {most} nodes, 0 on the "
                    "one of launch.rdzv_endpoint"
                )
        elif self.node_rank is not None:
            raise SettingsError(
                f"launch.node_rank={self.node_rank} is for launch.rdzv_backend=static; {backend} numbers the nodes "
                "itself"
            )

    @property
    def meeting(self) -> str:
        """The ``rdzv_backend`` that is taken."""
        return self.rdzv_backend or "c10d"

    def _check_endpoint(self) -> None:
        if not self.rdzv_endpoint:
            raise SettingsError(
                f"launch.nodes={self.nodes} needs launch.rdzv_endpoint=HOST:PORT, where the nodes meet; HOST is one of "
                "them"
            )
        if (self.rdzv_conf or {}).get("store_type") == "file":
            return
        found = ENDPOINT.fullmatch(self.rdzv_endpoint)
        port = int(found[1] or 29400) if found else 0
        if found is None or not 0 < port < 2**16 or (self.meeting == "static" and not found[1]):
            raise SettingsError(
                f"launch.rdzv_endpoint={self.rdzv_endpoint} is not of the form HOST:PORT with 0 < PORT < 65536"
            )

    def _check_conf(self) -> None:
        known, conf = CONF.get(self.meeting), self.rdzv_conf or {}
        if not isinstance(conf, dict):
            raise SettingsError(f"launch.rdzv_conf={conf} is no mapping; write {{name: value}}")
        for name, value in conf.items():
            if known is not None and name not in known:
                raise SettingsError(
                    f"launch.rdzv_conf.{name}: launch.rdzv_backend={self.meeting} has "
                    f"{', '.join(known)}{closest(name, known)}"
                )
            if isinstance(value, dict | list) or value is None:
                raise SettingsError(f"launch.rdzv_conf.{name}={value} is no text or number")
