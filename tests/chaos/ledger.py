"""Who trained on which rows in which step, as the ranks tell it while they run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.job import LARGEST, LEDGER


@dataclass(frozen=True)
class Line:
    """A rank's part in a step.

    Attributes:
        start: of the command, counted from 0.
        attempt: how often torchrun has restarted the ranks of this start.
        rank: that tells.
        process: its number.
        step: of the run, counted from 1.
        rows: that the rank gave to it.
        at: seconds of the monotonic clock when it was heard.
    """

    start: int
    attempt: int
    rank: int
    process: int
    step: int
    rows: tuple[int, ...]
    at: float


class Ledger:
    """Listens to the ranks, and writes down what they tell.

    Args:
        path: the file of lines.
    """

    def __init__(self, path: Path) -> None:
        self._lines: dict[int, list[Line]] = defaultdict(list)
        self._folder = tempfile.mkdtemp()  # the path of a socket must be short
        self._heard = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._file = path.open("w", encoding="utf-8")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return os.path.join(self._folder, "ledger")  # noqa: PTH118 - a text

    def close(self) -> None:
        """Listen no more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()
        self._file.close()
        shutil.rmtree(self._folder)

    def variables(self) -> dict[str, str]:
        """What ranks must find in their environment."""
        return {LEDGER: self.address}

    def of(self, start: int) -> list[Line]:
        """The lines of a start, as heard so far."""
        return self._lines[start].copy()

    @property
    def lines(self) -> list[Line]:
        """All lines, as heard so far."""
        return [line for start in sorted(self._lines) for line in self.of(start)]

    def wait_for(self, condition: Callable[[], Any], patience_s: float, look_s: float = 0.1) -> bool:
        """Wait until ``condition()`` holds, which is asked after every line; returns whether it does."""
        until = time.monotonic() + patience_s
        with self._heard:
            while not condition():
                if time.monotonic() > until:
                    return False
                self._heard.wait(look_s)
        return True

    def _listen(self) -> None:
        while content := self._socket.recv(LARGEST):
            told = json.loads(content)
            line = Line(**{**told, "rows": tuple(told["rows"])}, at=time.monotonic())
            with self._heard:
                self._lines[line.start].append(line)
                self._heard.notify_all()
            self._file.write(json.dumps(asdict(line)) + "\n")
            self._file.flush()


def whole_steps(lines: list[Line], worlds: list[int]) -> dict[int, list[tuple[int, ...]]]:
    """The rows of each step, sorted, as often as all ranks took it.

    Args:
        lines: of all starts.
        worlds: ranks of each start.
    """
    parts: dict[tuple[int, int, int], list[Line]] = defaultdict(list)
    for line in lines:
        parts[line.start, line.attempt, line.step].append(line)
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for (start, _, step), told in parts.items():
        if len(told) == worlds[start]:
            found[step].append(tuple(sorted(row for line in told for row in line.rows)))
    return found
