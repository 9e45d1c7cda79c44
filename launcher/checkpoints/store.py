"""Generations of checkpoints: a folder each, with a manifest of sizes and SHA-256, renamed into place when whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from launcher.files import sync, write_durably

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
GENERATION = "step_"
PART = ".part_"
VERSION = 1


class DamagedError(Exception):
    """A generation is not what was written."""


class NewerError(Exception):
    """A generation was written by a newer version of this package."""


def save(root: Path, step: int, files: Mapping[str, bytes]) -> Path:
    """Write the generation of ``step`` under ``root``; its folder appears once all of it is on the disk.

    Returns:
        The folder ``step_00000120`` of the generation.
    """
    root.mkdir(parents=True, exist_ok=True)
    part, final = root / f"{PART}{step:08d}_{os.getpid()}", _folder(root, step)
    shutil.rmtree(part, ignore_errors=True)  # of a process that died, in a container with the same number
    part.mkdir()
    try:
        _write(part, step, files)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)  # a full disk needs the room
        raise
    if final.exists():
        shutil.rmtree(final)
    part.rename(final)
    sync(root)
    return final


def _folder(root: Path, step: int) -> Path:
    return root / f"{GENERATION}{step:08d}"


def _write(part: Path, step: int, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_durably(part / name, content)
    entries = {name: {"size": len(c), "sha256": sha256(c).hexdigest()} for name, c in files.items()}
    manifest = {"version": VERSION, "step": step, "files": entries}
    write_durably(part / MANIFEST, json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1).encode())
    sync(part)


def generations(root: Path) -> list[Path]:
    """The generations under ``root``, newest first, whole or not."""
    return sorted(root.glob(f"{GENERATION}[0-9]*"), reverse=True)


def candidates(path: Path) -> list[Path]:
    """The generations that ``path`` may mean, newest first: one itself, or a run folder's, or those right in it."""
    if (path / MANIFEST).exists():
        return [path]
    inside = generations(path / FOLDER) or generations(path)
    return inside or ([path] if path.name.startswith(GENERATION) else [])


def prune(root: Path, step: int, keep: int) -> None:
    """Remove what the whole generation of ``step`` makes superfluous.

    Of it and the ones before it the newest ``keep`` stay. Those of later steps go: the run went back behind them, as
    they were damaged or it began anew.
    """
    newest = _folder(root, step).name
    before = [folder for folder in generations(root) if folder.name <= newest]
    later = [folder for folder in generations(root) if folder.name > newest]
    for folder in (*later, *before[keep:]):
        remove(folder)


def sweep(root: Path) -> None:
    """Remove what writers that died have left half written; for who knows that no writer lives."""
    for part in root.glob(f"{PART}*"):
        shutil.rmtree(part, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a generation; it is gone as a whole, or nothing of it is."""
    part = folder.with_name(f"{PART}{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    folder.rename(part)
    shutil.rmtree(part, ignore_errors=True)


def read(folder: Path, name: str) -> bytes:
    """One file of a generation.

    Raises:
        DamagedError: where the manifest or the file is missing, or the content is not what was written.
        NewerError: where a newer version wrote it.
    """
    return _read(folder, name, _entries(folder))


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
