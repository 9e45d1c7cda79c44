"""Optuna, and the file in which it keeps the study of a sweep."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from launcher.files import make_folders
from launcher.processes.errors import SettingsError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "study.journal"


def load_optuna() -> Any:
    """The package, which is not needed by anything else.

    Raises:
        SettingsError: where it is missing or too old.
    """
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise SettingsError("hydra/sweeper=optuna needs the package optuna: pip install 'evenshard[sweep]'") from error
    if int(optuna.__version__.split(".")[0]) < 5:  # noqa: PLR2004 - the first that is supported
        raise SettingsError(
            f"hydra/sweeper=optuna needs optuna 5, there is optuna {optuna.__version__}: pip install 'evenshard[sweep]'"
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def journal(folder: Path) -> BaseStorage:
    """What the journal in a folder holds, which is JSON and never a pickle; both are made where they are missing."""
    optuna = load_optuna()
    make_folders(folder)
    path = folder / JOURNAL
    drop_unfinished_line(path)
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=JournalLock(path))
    return optuna.storages.JournalStorage(backend)  # type: ignore[no-any-return]


def drop_unfinished_line(path: Path) -> None:
    """Cut what a writer that died left behind the last whole line, which the next line would be glued to."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


class JournalLock:
    """Keeps two writers apart, and is free again when its holder dies; what Optuna calls a journal file lock.

    Args:
        path: the journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for it; on a file system without locks nothing is held."""
        self._held = self._path.open("ab")
        with suppress(OSError):
            fcntl.lockf(self._held, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._held is not None:
            self._held.close()
