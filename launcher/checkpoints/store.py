"""Generations of checkpoints: a folder each, with a manifest of sizes and SHA-256, renamed into place when whole."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher.files import DISK, Disk, make_folders, remove_folder, write_durably

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
GENERATION = "step_"
PART = ".part_"
ASIDE = ".aside_"
VERSION = 1
MARGIN = 1.05
LEAST_ROOM = 1 << 20
"""Bytes that are left for folders and names, beside 5 % of what is written."""


class DamagedError(Exception):
    """A generation is not what was written."""


class NewerError(Exception):
    """A generation was written by a newer version of this package."""


def save(root: Path, step: int, files: Mapping[str, bytes], disk: Disk = DISK) -> Path:
    """Write the generation of ``step`` under ``root``; its folder appears once all of it is on the disk.

    Returns:
        The folder ``step_00000120`` of the generation.

    Raises:
        OSError: where it cannot be written, as on a full disk; what was kept before stays, half of this one does not.
    """
    make_folders(root, disk)
    part, final = root / f"{PART}{step:08d}_{os.getpid()}", folder_of(root, step)
    remove_folder(part, disk)  # of a process that died, in a container with the same number
    check_room(root, sum(map(len, files.values())), disk)
    try:
        disk.make_folder(part)
        _write(part, step, files, disk)
        _put_in_place(part, final, disk)
    except OSError:
        with suppress(OSError):  # a full disk needs the room
            remove_folder(part, disk)
        raise
    return final


def folder_of(root: Path, step: int) -> Path:
    """The folder of the generation of ``step``."""
    return root / f"{GENERATION}{step:08d}"


def step_of(folder: Path) -> int:
    """The step of a generation."""
    return int(folder.name.removeprefix(GENERATION))


def check_writable(root: Path, size: int, disk: Disk = DISK) -> None:
    """Refuse a folder in which no generation of ``size`` bytes could be written.

    Raises:
        OSError: with the reason.
    """
    make_folders(root, disk)
    part = root / f"{PART}{os.getpid()}"
    disk.make_folder(part)
    disk.delete_folder(part)
    check_room(root, size, disk)


def check_room(root: Path, size: int, disk: Disk = DISK) -> None:
    """Refuse to begin to write ``size`` bytes where they do not fit.

    Raises:
        OSError: with both numbers.
    """
    needed, free = int(size * MARGIN) + LEAST_ROOM, disk.free(root)
    if free < needed:
        raise OSError(errno.ENOSPC, f"no space: {megabytes(needed)} are needed, {megabytes(free)} are free", str(root))


def megabytes(size: int) -> str:
    """``size`` bytes in words.

    >>> megabytes(90_070_000)
    '90.1 MB'
    """
    return f"{size / 1e6:,.1f} MB"


def _write(part: Path, step: int, files: Mapping[str, bytes], disk: Disk) -> None:
    for name, content in files.items():
        write_durably(part / name, content, disk)
    entries = {name: {"size": len(c), "sha256": sha256(c).hexdigest()} for name, c in files.items()}
    manifest = {"version": VERSION, "step": step, "files": entries}
    text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1)
    write_durably(part / MANIFEST, text.encode(), disk)
    disk.sync(part)


def _put_in_place(part: Path, final: Path, disk: Disk) -> None:
    """Give a whole generation its name; one of the same step stands aside until that is done, for ``sweep`` to find."""
    aside = final.with_name(f"{ASIDE}{final.name}")
    if final.exists():
        remove_folder(aside, disk)
        disk.move(final, aside)
    try:
        disk.move(part, final)
    except OSError:
        if aside.exists():
            disk.move(aside, final)
        raise
    disk.sync(final.parent)
    remove_folder(aside, disk)


def generations(root: Path) -> list[Path]:
    """The generations under ``root``, newest first, whole or not."""
    found = root.glob(f"{GENERATION}[0-9]*")
    return sorted((folder for folder in found if folder.name.removeprefix(GENERATION).isdigit()), reverse=True)


def candidates(path: Path) -> list[Path]:
    """The generations that ``path`` may mean, newest first: one itself, or a run folder's, or those right in it."""
    if (path / MANIFEST).exists():
        return [path]
    inside = generations(path / FOLDER) or generations(path)
    return inside or ([path] if path.name.startswith(GENERATION) else [])


def prune(
    root: Path,
    step: int,
    keep: int,
    best: int | None = None,
    makes_way: Callable[[int], bool] = lambda _: False,
    disk: Disk = DISK,
) -> None:
    """Remove what the whole generation of ``step`` makes superfluous.

    Of it and the ones before it the newest ``keep`` stay, among which none counts of a step that ``makes_way`` for the
    next, and that of the step ``best``. Those of later steps go: the run went back behind them, as they were damaged or
    it began anew.
    """
    newest, spared = folder_of(root, step), None if best is None else folder_of(root, best)
    before = [folder for folder in generations(root) if folder.name < newest.name and not makes_way(step_of(folder))]
    stay = {newest, spared, *before[: keep - 1]}
    superfluous = [folder for folder in generations(root) if folder not in stay]
    parts = [folder.with_name(f"{PART}{folder.name}") for folder in superfluous]
    for folder, part in zip(superfluous, parts, strict=True):
        remove_folder(part, disk)
        disk.move(folder, part)  # it is gone as a whole, or nothing of it is
    if parts:
        disk.sync(root)
    for part in parts:
        remove_folder(part, disk)


def sweep(root: Path, disk: Disk = DISK) -> None:
    """Tidy up after writers that died, for who knows that no writer lives.

    What they have left half written goes; a generation that stood aside for one that never came gets its name back.
    """
    with suppress(OSError):  # who may not delete may still read
        for aside in sorted(root.glob(f"{ASIDE}*")):
            final = root / aside.name.removeprefix(ASIDE)
            if not final.exists():
                disk.move(aside, final)
                disk.sync(root)
        for part in sorted((*root.glob(f"{PART}*"), *root.glob(f"{ASIDE}*"))):
            remove_folder(part, disk)


def read(folder: Path, name: str) -> bytes:
    """One file of a generation.

    Raises:
        DamagedError: where the manifest or the file is missing, or the content is not what was written.
        NewerError: where a newer version wrote it.
    """
    return _read(folder, name, _entries(folder))


def names(folder: Path) -> list[str]:
    """The names of the files of a generation.

    Raises:
        DamagedError: where the manifest is missing, or not what was written.
        NewerError: where a newer version wrote it.
    """
    return list(_entries(folder))


def check_whole(folder: Path, names: tuple[str, ...]) -> None:
    """Read every file of a generation, among which ``names`` must be.

    Raises:
        DamagedError: as ``read``, and where one of ``names`` was never in it.
        NewerError: as ``read``.
    """
    entries = _entries(folder)
    if lacking := [name for name in names if name not in entries]:
        raise DamagedError(f"{folder}: it was written without {' and '.join(lacking)}")
    for name in entries:
        _read(folder, name, entries)


def _read(folder: Path, name: str, entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    try:
        size, digest = entries[name]["size"], entries[name]["sha256"]
        content = (folder / name).read_bytes()
    except (OSError, KeyError) as error:
        raise DamagedError(f"{folder}: {type(error).__name__}: {error}") from error
    if len(content) != size:
        raise DamagedError(f"{folder / name}: {len(content)} bytes, {size} were written")
    if sha256(content).hexdigest() != digest:
        raise DamagedError(f"{folder / name}: the content is not what was written (SHA-256 differs)")
    return content


def _entries(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """What the manifest says about each file."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        whole = manifest.pop("sha256") == _digest(manifest)
        version, entries = manifest["version"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder}: {type(error).__name__}: {error}") from error
    if not whole:
        raise DamagedError(f"{folder / MANIFEST}: the content is not what was written (SHA-256 differs)")
    if version > VERSION:
        raise NewerError(f"{folder} has format version {version}, this version of evenshard reads up to {VERSION}")
    return entries  # type: ignore[no-any-return]


def _digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest but for its own."""
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
