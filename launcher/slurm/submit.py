"""Handing a script to Slurm."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.processes.errors import SettingsError

SCRIPT = "slurm.sh"


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
        raise SettingsError(f"hydra.run.dir={folder} cannot be written: {error.strerror or error}") from error
    ended = subprocess.run(  # noqa: S603 - our own command
        [sbatch, "--parsable", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SettingsError(f"launch.engine=slurm: sbatch refuses {script}: {_in_one_line(ended.stderr)}")
    return Submitted(ended.stdout.strip().partition(";")[0], ended.stderr.strip())


def _in_one_line(text: str) -> str:
    lines = (line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in text.splitlines())
    return "; ".join(line for line in lines if line) or "it does not say why"
