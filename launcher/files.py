"""Files that are either whole or not there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

UNREADABLE = (EOFError, OSError, RuntimeError, ValueError, pickle.UnpicklingError)
"""What torch.load raises for a file that is damaged or holds something else."""


def write_durably(path: Path, content: bytes) -> None:
    """Write ``content`` and flush it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: str) -> None:
    """Put ``content`` in the place of ``path`` in one move: a reader sees the old text or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(content, encoding="utf-8")
    part.replace(path)
