"""The run folder: one for all ranks, and never that of another run."""

from __future__ import annotations

import itertools
from pathlib import Path

from launcher.observe.status import read_status
from launcher.processes.errors import SettingsError

CONFIG = "config.yaml"


def make_run_folder(path: Path, always_new: bool) -> Path:
    """Make the run folder and claim it with an empty ``config.yaml``.

    Args:
        path: as ``hydra.run.dir`` gives it.
        always_new: ``hydra.run.dir`` holds the time, so a folder that is there already belongs to a run that started
            in the same second: a suffix is added. Otherwise the user named this very folder.

    Raises:
        SettingsError: where the folder holds a run already or cannot be made.
    """
    try:
        folder = _first_free(path) if always_new else path
        folder.mkdir(parents=True, exist_ok=True)
        if _never_began(folder):
            (folder / CONFIG).unlink()
        (folder / CONFIG).open("x").close()
    except FileExistsError as error:
        raise SettingsError(
            f"hydra.run.dir={path} holds a run already; nothing is overwritten: give another folder"
        ) from error
    except OSError as error:
        raise SettingsError(f"hydra.run.dir={path} cannot be used: {error.strerror or error}") from error
    return folder


def _never_began(folder: Path) -> bool:
    """Whether the folder holds nothing but a run that failed before its first step."""
    status = read_status(folder)
    return (folder / CONFIG).exists() and status.state == "failed" and status.step == 0


def _first_free(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        folder = path.with_name(f"{path.name}_{number}") if number else path
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")
