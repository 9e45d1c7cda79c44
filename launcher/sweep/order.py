"""What the processes of a job are told: composed settings in a file, never words on a command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.files import replace_file
from launcher.sweep.jobs import Job

NAME = "job.json"


@dataclass(frozen=True)
class Order:
    """What rank 0 of a job reads; the others are told by it.

    Attributes:
        run: the settings as JSON.
        run_dir: the run folder.
        chdir: whether to work inside it.
        notes: what the user should know, said when the run starts.
        command: that begins this run alone, as the run folder keeps it.
    """

    run: str
    run_dir: str
    chdir: bool
    notes: list[str]
    command: str

    @classmethod
    def read(cls, file: Path) -> Order:
        """The order that ``leave_order`` left."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def leave_order(job: Job) -> Path:
    """Leave what a job's processes read in its run folder; returns the file."""
    order = Order(job.run.to_json(), str(job.run_dir), job.chdir, list(job.notes), job.command)
    job.run_dir.mkdir(parents=True, exist_ok=True)
    replace_file(job.run_dir / NAME, json.dumps(asdict(order), ensure_ascii=False, indent=1) + "\n")
    return job.run_dir / NAME
