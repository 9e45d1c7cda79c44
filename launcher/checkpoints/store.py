"""Generations of checkpoints: a folder each, with a manifest of sizes and SHA-256, renamed into place when whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from launcher.files import sync_folder, write_durably

MANIFEST = "manifest.json"
VERSION = 1


class DamagedError(Exception):
    """A generation is not what was written."""


def save(root: Path, step: int, files: Mapping[str, bytes]) -> Path:
    """Write the generation of ``step`` under ``root``; its folder appears once all of it is on the disk.

    Returns:
        The folder ``step_00000120`` of the generation.
    """
    root.mkdir(parents=True, exist_ok=True)
    part, final = root / f".part_{step:08d}_{os.getpid()}", root / f"step_{step:08d}"
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
    sync_folder(root)
    return final


def _write(part: Path, step: int, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_durably(part / name, content)
    entries = {name: {"size": len(c), "sha256": sha256(c).hexdigest()} for name, c in files.items()}
    manifest = {"version": VERSION, "step": step, "files": entries}
    write_durably(part / MANIFEST, json.dumps(manifest, indent=1).encode())
    sync_folder(part)


def generations(root: Path) -> list[Path]:
    """The generations under ``root``, newest first, whole or not."""
    return sorted(root.glob("step_*"), reverse=True)


def read(folder: Path, name: str) -> bytes:
    """One file of a generation.

    Raises:
        DamagedError: where the manifest or the file is missing, or the content is not what was written.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        entry = manifest["files"][name]
        size, digest = entry["size"], entry["sha256"]
        content = (folder / name).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder}: {type(error).__name__}: {error}") from error
    if len(content) != size:
        raise DamagedError(f"{folder / name}: {len(content)} bytes, {size} were written")
    if sha256(content).hexdigest() != digest:
        raise DamagedError(f"{folder / name}: the content is not what was written (SHA-256 differs)")
    return content
