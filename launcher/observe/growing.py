"""A file that grows, also where the disk is full for a while."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


class Growing:
    """Appends whole pieces to a file, from any thread; what the system refuses waits, and is written before the next.

    Args:
        path: the file; its folder is made with the first piece.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()

    def put(self, piece: bytes) -> None:
        """Let a piece wait to be written."""
        self._waiting.append(piece)

    def write(self) -> None:
        """Write the pieces that wait.

        Raises:
            OSError: where they have to wait on.
        """
        with self._lock:
            count = len(self._waiting)
            if count:
                self._append(b"".join(self._waiting[:count]))
                del self._waiting[:count]

    def _append(self, content: bytes) -> None:
        """Append all of ``content``, or nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as file:
                file.write(content)
        except OSError:
            with suppress(OSError):
                os.truncate(self._path, size)
            raise
