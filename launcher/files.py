"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNREADABLE = (EOFError, OSError, RuntimeError, ValueError, pickle.UnpicklingError)
"""What torch.load raises for a file that is damaged or holds something else."""
LOOK_S = 0.2


def write_durably(path: Path, content: bytes) -> None:
    """Write ``content`` and flush it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file that others have written, or the names in a folder, to the disk."""
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


class InUseError(Exception):
    """Another process holds a lock; the text says which."""


@contextmanager
def lock(path: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file for the length of the block, or until the process is gone, however it ends.

    Child processes do not inherit it. On file systems without locks nothing is held.

    Args:
        path: the file, which is made and stays.
        patience_s: seconds to wait for another process.

    Raises:
        InUseError: where another process holds it.
    """
    until = time.monotonic() + patience_s
    with path.open("a+", encoding="utf-8") as file:
        while not _locks(file.fileno()):
            if time.monotonic() > until:
                file.seek(0)
                raise InUseError(file.read().strip() or "another process")
            time.sleep(LOOK_S)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _locks(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
