"""A file of lines that grows, also where the disk is full for a while."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


class Lines:
    """Appends whole lines to a file, from any thread; one that the system refuses is written before the next.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Append a line.

        Raises:
            OSError: where it has to wait.
        """
        self._waiting.append(line + "\n")
        self.write()

    def write(self) -> None:
        """Write the lines that wait.

        Raises:
            OSError: where they have to wait on.
        """
        with self._lock:
            count = len(self._waiting)
            if count:
                self._append("".join(self._waiting[:count]))
                del self._waiting[:count]

    def _append(self, text: str) -> None:
        """Append all of ``text``, or nothing."""
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            with suppress(OSError):
                os.truncate(self._path, size)
            raise
