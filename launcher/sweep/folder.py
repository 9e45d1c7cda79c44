"""The folder of a sweep: one for all its processes, and never that of another."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import torch.distributed as dist

from launcher.configure.run_folder import LOCK, first_free, hold
from launcher.processes.errors import SettingsError

OPTION = "hydra.sweep.dir"
REMEMBERED = "sweep_dir"
"""Where the processes of a sweep remember its folder, for when torchrun starts them anew."""
PATIENCE_S = 20.0


def claim(path: Path, always_new: bool, held: ExitStack, store: dist.Store) -> Path:
    """Make the folder of a sweep, or take up that of an earlier start; it goes again where nothing is put in it.

    Args:
        path: as ``hydra.sweep.dir`` gives it.
        always_new: it holds the time, so a folder that is there belongs to a sweep that started in the same second.
        held: keeps others out of the folder until it is closed.
        store: of the processes of the sweep.

    Raises:
        SettingsError: where it is in use or cannot be made.
    """
    again = store.check([REMEMBERED])
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        folder = Path(store.get(REMEMBERED).decode()) if again else first_free(path) if always_new else path
        folder.mkdir(parents=True, exist_ok=True)
        hold(folder, held, PATIENCE_S if again else 0.0, OPTION)
        held.callback(_give_up, [folder, *missing])
    except OSError as error:
        raise SettingsError(f"{OPTION}={path} cannot be used: {error.strerror or error}") from error
    store.set(REMEMBERED, str(folder))
    return folder


def _give_up(folders: list[Path]) -> None:
    """Remove a folder in which nothing but its lock is, and those above it that were made for it."""
    with suppress(OSError):
        if [file.name for file in folders[0].iterdir()] == [LOCK]:
            (folders[0] / LOCK).unlink()
        for folder in folders:
            if folder.is_dir():
                folder.rmdir()
