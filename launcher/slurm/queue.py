"""What Slurm is asked: to take a script, and which of the tasks that it took are not over yet."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.files import replace_file
from launcher.processes.errors import SettingsError

SCRIPT = "slurm.sh"
ARRAYS = "slurm.json"
"""The arrays that a sweep was submitted as, in its folder."""


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm took.

    Attributes:
        job: its number.
        said: what sbatch said besides, such as warnings of the site.
    """

    job: str
    said: str


def submit(text: str, folder: Path) -> Submitted:
    """Leave a script in ``folder`` and submit it.

    Raises:
        SettingsError: where the folder cannot be written, there is no sbatch, or it refuses the script.
    """
    script = folder / SCRIPT
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise SettingsError(
            "launch.engine=slurm: this machine has no sbatch; give the command where jobs are submitted, or set "
            "launch.engine=local"
        )
    try:
        script.write_bytes(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror or error}") from error
    status, printed, said = _run(sbatch, "--parsable", str(script))
    if status:
        raise SettingsError(f"launch.engine=slurm: sbatch refuses {script}: {_in_one_line(said)}")
    return Submitted(printed.strip().partition(";")[0], said.strip())


def tasks_in_queue(arrays: Iterable[str]) -> set[int]:
    """Which tasks of these job arrays wait or run; of an array that Slurm has forgotten, none."""
    squeue = shutil.which("squeue")
    found: set[int] = set()
    for array in arrays if squeue else ():
        _, printed, _ = _run(str(squeue), "--noheader", "--array", "--format=%K", f"--jobs={array}")
        found |= {int(task) for task in printed.split() if task.isdecimal()}
    return found


def arrays_of(folder: Path) -> list[str]:
    """The job arrays that the sweep in ``folder`` was submitted as so far."""
    file = folder / ARRAYS
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def note_array(folder: Path, job: str) -> None:
    """The sweep in ``folder`` was submitted as one more."""
    replace_file(folder / ARRAYS, json.dumps([*arrays_of(folder), job]) + "\n")


def _run(*command: str) -> tuple[int, str, str]:
    ended = subprocess.run(  # noqa: S603 - our own command
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def _in_one_line(text: str) -> str:
    lines = (line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in text.splitlines())
    return "; ".join(line for line in lines if line) or "it does not say why"
