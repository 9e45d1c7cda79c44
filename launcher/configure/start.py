"""What the settings of ``launch`` amount to in this process: ranks that it starts, or none where it is one itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.configure.launch import LaunchConfig
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.processes.group import cuda_devices
from samplers.words import counted

if TYPE_CHECKING:
    from launcher.processes.spawn import Launch

OF_OWN_RANKS = {
    "nodes": "--nnodes",
    "max_restarts": "--max-restarts",
    "monitor_interval_s": "--monitor-interval",
    "log_dir": "--log-dir",
}
"""Settings of the ranks that launch.processes starts, and what torchrun calls them."""
OF_A_JOB = ("engine", "nodes", "processes", "rdzv_endpoint", "rdzv_id")
"""Settings that may be given beside the file with all of them."""


def first_rank(launch: LaunchConfig, rank: Rank) -> Rank:
    """This process as a rank of the run, or the first one of those that it starts.

    Where more nodes may come than must, those that must are counted.

    Raises:
        SettingsError: where torchrun or Slurm started other ranks than were asked for.
    """
    if rank.started_by == "python":
        here = processes_here(launch)
        return replace(rank, world_size=here * launch.nodes_range[0], local_world_size=here)
    if rank.started_by != "launcher" and launch.processes not in (None, "auto", rank.local_world_size):
        raise SettingsError(
            f"launch.processes={launch.processes}, but {rank.started_by} started {rank.local_world_size} on this node; "
            "leave launch.processes out"
        )
    return rank


def processes_here(launch: LaunchConfig) -> int:
    """How many ranks ``launch.processes`` means on this node."""
    if launch.processes == "auto":
        return max(1, cuda_devices(launch.device))
    return int(launch.processes or 1)


def starts_ranks(launch: LaunchConfig, rank: Rank) -> bool:
    """Whether this process starts the ranks, rather than being one.

    Raises:
        SettingsError: where something is asked for of ranks that others start, or more ranks than there are devices.
    """
    if rank.started_by == "launcher":
        return False
    asked = {name: value for name in OF_OWN_RANKS if (value := getattr(launch, name)) != getattr(LaunchConfig, name)}
    for name, value in asked.items():
        _check_starter(launch, rank, name, value)
    if rank.started_by != "python":
        return False
    _check_devices(launch)
    return bool(asked) or processes_here(launch) > 1


def with_words(launch: LaunchConfig, words: Sequence[str]) -> LaunchConfig:
    """``launch`` with what only the script of a job knows, such as ``launch.rdzv_id=7``.

    Raises:
        SettingsError: for another setting.
    """
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.removeprefix("launch.").partition("=")
        if name not in OF_A_JOB:
            raise SettingsError(f"{word}: with --job settings come from its file, but for launch.{', '.join(OF_A_JOB)}")
        given[name] = int(text) if text.isdecimal() and not name.startswith("rdzv") else text
    return replace(launch, **given)


def launch_of(launch: LaunchConfig) -> Launch:
    """The ranks that this process starts."""
    from launcher.processes.meeting import Meeting  # noqa: PLC0415 - slow to import, and most processes start nothing
    from launcher.processes.spawn import Launch  # noqa: PLC0415

    meeting = Meeting()
    if launch.nodes_range[1] > 1:
        meeting = Meeting(
            endpoint=str(launch.rdzv_endpoint),
            nodes=launch.nodes_range,
            backend=launch.meeting,
            run_id=launch.rdzv_id or "evenshard",
            conf=launch.rdzv_conf or {},
            node_rank=launch.node_rank,
            local_addr=launch.local_addr,
        )
    redirects, tee = launch.streams
    return Launch(
        processes=processes_here(launch),
        meeting=meeting,
        max_restarts=launch.max_restarts,
        monitor_interval_s=launch.monitor_interval_s,
        log_dir=launch.log_dir,
        redirects=redirects,
        tee=tee,
    )


def _check_starter(launch: LaunchConfig, rank: Rank, name: str, value: object) -> None:
    option = f"launch.{name}={value}"
    if rank.started_by == "python":
        if launch.processes is None and name != "nodes":
            raise SettingsError(f"{option} is for ranks that launch.processes starts; set launch.processes")
        return
    if name == "max_restarts" and value == rank.max_restarts:
        return
    remedy = f", and give torchrun {OF_OWN_RANKS[name]}={value}" if rank.started_by == "torchrun" else ""
    raise SettingsError(
        f"{option} is for ranks that launch.processes starts, and {rank.started_by} started these; leave it out{remedy}"
    )


def _check_devices(launch: LaunchConfig) -> None:
    asked, found = processes_here(launch), cuda_devices(launch.device)
    if launch.device == "cpu" or asked <= found or (launch.device == "auto" and found == 0):
        return
    if found == 0:
        raise SettingsError("launch.device=cuda: this node shows no CUDA device; set launch.device=cpu")
    raise SettingsError(
        f"launch.processes={asked} needs {counted(asked, 'CUDA device')}, and this node shows {found}; set "
        "launch.processes=auto for one per device, or launch.device=cpu"
    )
