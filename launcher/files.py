"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNREADABLE = (EOFError, OSError, RuntimeError, ValueError, pickle.UnpicklingError)
"""What torch.load raises for a file that is damaged or holds something else."""
BLOCK = 512
"""Bytes in which the system counts the room of a file."""
LOOK_S = 0.2
FLOCK = "hhqqi"
"""``struct flock`` of Linux: type, whence, start, length, process."""


class Disk:
    """The operations of which saving consists, each of which the system does or refuses as one.

    Whatever a save does to the disk goes through here, so that a test can take the place of each.
    """

    def make_folder(self, path: Path) -> None:
        """Make one folder."""
        path.mkdir()

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, which a crash of the machine may still undo."""
        with path.open("wb") as file:
            file.write(content)

    def sync(self, path: Path) -> None:
        """Flush a file, or the names in a folder, to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def move(self, path: Path, target: Path) -> None:
        """Give a file or folder another name; a file of that name is replaced."""
        path.replace(target)

    def delete(self, path: Path) -> None:
        """Delete a file."""
        path.unlink()

    def delete_folder(self, path: Path) -> None:
        """Delete an empty folder."""
        path.rmdir()

    def free(self, path: Path) -> int:
        """Bytes that the file system of a folder has left."""
        return shutil.disk_usage(path).free


DISK = Disk()


def write_durably(path: Path, content: bytes, disk: Disk = DISK) -> None:
    """Write ``content`` and flush it to the disk; its name becomes durable with its folder."""
    disk.write(path, content)
    disk.sync(path)


def replace_durably(path: Path, content: bytes, disk: Disk = DISK) -> None:
    """Put ``content`` in the place of ``path`` in one move that lasts."""
    part = _part_of(path)
    try:
        write_durably(part, content, disk)
        disk.move(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    disk.sync(path.parent)


def make_folders(path: Path, disk: Disk = DISK) -> None:
    """Make a folder and those above it that are missing; their names last."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        with suppress(FileExistsError):  # another process made it
            disk.make_folder(folder)
        disk.sync(folder.parent)


def remove_folder(path: Path, disk: Disk = DISK) -> None:
    """Delete a folder with all that is in it, if it is there."""
    if not path.exists():
        return
    for inside in sorted(path.iterdir()):
        if inside.is_dir() and not inside.is_symlink():
            remove_folder(inside, disk)
        else:
            disk.delete(inside)
    disk.delete_folder(path)


def replace_file(path: Path, content: str) -> None:
    """Put ``content`` in the place of ``path`` in one move: a reader sees the old text or the new one."""
    part = _part_of(path)
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_over(path: Path, content: str) -> None:
    """Write ``content`` over a file, within the room that it takes on the disk; a reader may see half of it.

    Raises:
        OSError: where there is no such file, or too little room.
    """
    text = content.encode()
    with path.open("r+b") as file:
        if len(text) > os.fstat(file.fileno()).st_blocks * BLOCK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.write(text)
        file.truncate()


def below(path: Path, folder: Path) -> Path:
    """``path`` as seen from ``folder``, where it lies below it; else as it is."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


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


def holder_of(path: Path) -> str | None:
    """Who holds the lock of a file, which is left alone; None: nobody, or this system does not tell."""
    if sys.platform != "linux" or not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        with suppress(OSError):  # a file system without locks
            kind, *_ = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            return None if kind == fcntl.F_UNLCK else file.read().strip() or "another process"
    return None


def _locks(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
