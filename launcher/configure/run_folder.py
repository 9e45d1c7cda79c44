"""The run folder: one for all ranks, and never that of another run."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from omegaconf import OmegaConf

from launcher.checkpoints import store
from launcher.configure.schema import RunConfig
from launcher.files import InUseError, holder_of, lock
from launcher.observe.status import read_status
from launcher.processes.errors import SettingsError

CONFIG = "config.yaml"
LOCK = ".lock"


def claim_run_folder(
    path: Path, always_new: bool, continues: bool, held: ExitStack, patience_s: float = 0.0
) -> tuple[Path, bool]:
    """Make the run folder and claim it with an empty ``config.yaml``, or take up the run that it holds.

    Args:
        path: as ``hydra.run.dir`` gives it.
        always_new: ``hydra.run.dir`` holds the time, so a folder that is there already belongs to a run that started
            in the same second: a suffix is added. Otherwise the user named this very folder.
        continues: whether a run that is there may be continued.
        held: keeps others out of the folder until it is closed.
        patience_s: seconds to wait for another process that works in it.

    Returns:
        The folder, and whether it holds a run to continue.

    Raises:
        SettingsError: where the folder is a file, cannot be made, is in use or holds a run that is not to be continued.
    """
    try:
        _check_no_file(path)
        folder = first_free(path) if always_new else path
        folder.mkdir(parents=True, exist_ok=True)
        hold(folder, held, patience_s)
        if _never_began(folder):
            (folder / CONFIG).unlink()
        if continues and _can_continue(folder):
            return folder, True
        (folder / CONFIG).open("x").close()
    except FileExistsError as error:
        raise _holds_a_run(path) from error
    except OSError as error:
        raise _cannot_be_used(path, error.strerror or str(error)) from error
    return folder, False


def check_run_folder(path: Path, always_new: bool, continues: bool) -> None:
    """Refuse what ``claim_run_folder`` would refuse, and touch nothing; the arguments are the same."""
    try:
        _check_no_file(path)
        _check_place(path)
    except OSError as error:
        raise _cannot_be_used(path, error.strerror or str(error)) from error
    if always_new:
        return
    if holder := holder_of(path / LOCK):
        raise _in_use(path, holder)
    if (path / CONFIG).exists() and not _never_began(path) and not (continues and _can_continue(path)):
        raise _holds_a_run(path)


def _check_place(path: Path) -> None:
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    if not above.is_dir():
        raise _cannot_be_used(path, os.strerror(errno.ENOTDIR))
    if not os.access(above, os.W_OK | os.X_OK):
        raise _cannot_be_used(path, os.strerror(errno.EACCES))


def settle_run_folder(path: Path, always_new: bool, continues: bool) -> Path:
    """The folder of a run that starts, and claims it, later; arguments and errors are those of ``claim_run_folder``."""
    check_run_folder(path, always_new, continues)
    try:
        folder = first_free(path) if always_new else path
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_used(path, error.strerror or str(error)) from error
    return folder


def hold(folder: Path, held: ExitStack, patience_s: float = 0.0, option: str = "hydra.run.dir") -> None:
    """Keep others out of the folder of a run or a sweep until ``held`` is closed or the process is gone.

    What dead writers left is swept.

    Raises:
        SettingsError: where another process works in it, also after ``patience_s`` seconds.
    """
    try:
        held.enter_context(lock(folder / LOCK, patience_s))
    except InUseError as error:
        raise _in_use(folder, str(error), option) from error
    store.sweep(folder / store.FOLDER)


def to_yaml(run: RunConfig) -> str:
    """The settings as YAML, the form in which the run folder keeps them."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(run)))


def _check_no_file(path: Path) -> None:
    if path.is_file():
        raise SettingsError(f"hydra.run.dir={path} is a file; give a folder")
    link = next((part for part in (path, *path.parents) if part.is_symlink() and not part.exists()), None)
    if link is not None:
        raise _cannot_be_used(path, f"{link} is a link to {link.readlink()}, which is not there")


def _holds_a_run(path: Path) -> SettingsError:
    remedy = ", or continue that run with checkpoint.resume=auto" if _has_checkpoints(path) else ""
    return SettingsError(
        f"hydra.run.dir={path} holds a run already; nothing is overwritten: give another folder{remedy}"
    )


def _cannot_be_used(path: Path, why: str) -> SettingsError:
    return SettingsError(f"hydra.run.dir={path} cannot be used: {why}")


def _in_use(path: Path, holder: str, option: str = "hydra.run.dir") -> SettingsError:
    return SettingsError(f"{option}={path} is in use by {holder}; wait until that has ended, or give another folder")


def _never_began(folder: Path) -> bool:
    """Whether the folder holds nothing but a run that ended before its first step."""
    status = read_status(folder)
    ended = status.state in ("failed", "preempted") and status.step == 0
    return (folder / CONFIG).exists() and ended and not _has_checkpoints(folder)


def _can_continue(folder: Path) -> bool:
    """Whether the folder holds checkpoints, or a run that did not get as far as its first."""
    interrupted = (folder / CONFIG).exists() and read_status(folder).state in ("running", "failed", "preempted")
    return _has_checkpoints(folder) or interrupted


def _has_checkpoints(folder: Path) -> bool:
    return bool(store.generations(folder / store.FOLDER))


def first_free(path: Path) -> Path:
    """Make a folder of this name, or with a number behind it where it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        folder = path.with_name(f"{path.name}_{number}") if number else path
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")
