"""The run folder: one for all ranks, and never that of another run."""

from __future__ import annotations

import itertools
from pathlib import Path

from launcher.processes.errors import SettingsError

STATUS = "status.json"


def make_run_folder(path: Path, always_new: bool) -> Path:
    """Make the run folder.

    Args:
        path: as ``hydra.run.dir`` gives it.
        always_new: ``hydra.run.dir`` holds the time, so a folder that is there already belongs to a run that started
            in the same second: a suffix is added. Otherwise the user named this very folder.

    Raises:
        SettingsError: where the folder holds a run already or cannot be made.
    """
    try:
        if always_new:
            return _first_free(path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"hydra.run.dir={path} cannot be made: {error.strerror or error}") from error
    if (path / STATUS).exists():
        raise SettingsError(f"hydra.run.dir={path} holds a run already; nothing is overwritten: give another folder")
    return path


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
