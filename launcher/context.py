"""Where a run happens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.processes.environment import Rank
from launcher.processes.signals import Signals
from launcher.processes.watch import Watch
from samplers.words import counted


@dataclass(frozen=True)
class RankContext:
    """Where a run happens on this rank.

    Attributes:
        rank: this process.
        store: what the ranks meet at.
        signals: what they ask of it.
        watch: keeps an eye on the others.
        run_dir: the run folder.
        device: of this rank.
        threads: that this rank computes with.
        command: what the user typed, as the run folder keeps it.
    """

    rank: Rank
    store: dist.Store
    signals: Signals
    watch: Watch
    run_dir: Path
    device: torch.device
    threads: int
    command: str = ""

    def describe(self, working: int, *more: str) -> str:
        """Lines: ranks, device and threads; ``more``; the folder."""
        ranks, threads = counted(working, "rank"), counted(self.threads, "thread")
        devices = f"devices          {ranks} on {self.device.type}, {threads} each"
        return "\n".join([devices, *more, f"run folder       {self.run_dir}"])
