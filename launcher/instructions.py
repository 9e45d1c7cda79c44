"""What rank 0 made of the command line, and what all ranks keep of it for their next start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import torch.distributed as dist

from launcher.configure.schema import RunConfig
from launcher.processes.environment import Rank
from launcher.processes.errors import PREEMPTED, SettingsError, first_line

REMEMBERED, ORDERS, RESTARTS = "remembered", "orders", "restarts"


@dataclass(frozen=True)
class Instructions:
    """What rank 0 made of the command line, for all ranks.

    Attributes:
        exit_status: for a command that is over already; None for a run.
        run: the settings as JSON.
        digest: of the settings.
        run_dir: the run folder.
        chdir: whether to work inside it.
        notes: what the user should know, said when the run starts.
        sweeps: whether it is a sweep, of which every rank has the command line.
        command: what the user typed, as the run folder keeps it.
    """

    exit_status: int | None = None
    run: str = ""
    digest: str = ""
    run_dir: str = ""
    chdir: bool = False
    notes: list[str] = field(default_factory=list)
    sweeps: bool = False
    command: str = ""

    def to_json(self) -> str:
        """The form in which they travel."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Instructions:
        """The instructions that ``to_json`` wrote."""
        return cls(**json.loads(text))

    def settings(self) -> RunConfig:
        """The settings, checked to be those of rank 0.

        Raises:
            SettingsError: where this rank understands them otherwise, as another version of the package would.
        """
        other, remedy = "this rank reads other settings than rank 0", "use the same version of evenshard everywhere"
        try:
            run = RunConfig.from_json(self.run)
        except (TypeError, KeyError) as error:
            raise SettingsError(f"{other}: {first_line(error)}; {remedy}") from error
        if run.digest != self.digest:
            raise SettingsError(f"{other}: their SHA-256 is {run.digest} here, {self.digest} there; {remedy}")
        return run


def remembered(rank: Rank, store: dist.Store) -> Instructions | None:
    """On rank 0: what was found out before its agent started the ranks again; None: nothing.

    Ranks that were stopped for other nodes to take part were not preempted: their agent counted no restart.
    """
    before = store.get(RESTARTS) if store.check([RESTARTS]) else b""
    store.set(RESTARTS, str(rank.restarts))
    if not store.check([REMEMBERED]):
        return None
    found = Instructions.from_json(store.get(REMEMBERED).decode())
    if found.exit_status != PREEMPTED or before != str(rank.restarts).encode():
        return found
    return Instructions.from_json(store.get(ORDERS).decode()) if store.check([ORDERS]) else None
