"""Log lines: those of rank 0 on the console, those of every rank in its own file of the run folder."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rich.console import Console


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Go on without a reader."""


CONSOLE = _Screen(highlight=False, markup=False, emoji=False, soft_wrap=True)


class ConsoleHandler(logging.Handler):
    """Prints lines above a progress bar, if there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what is for the file alone."""
        return not getattr(record, "file_only", False)

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        try:
            prefix = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
            CONSOLE.print(prefix + self.format(record))
        except Exception:  # noqa: BLE001 - logging must not end a run
            self.handleError(record)


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Keep lines back in silence while the disk is full."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def log_to(run_dir: Path, rank: int, console: bool) -> None:
    """Send log lines and warnings to ``rank_N.log``, and to the console as well where ``console`` is set."""
    file = _File(run_dir / f"rank_{rank}.log", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [file]
    if console:
        screen = ConsoleHandler()
        screen.setFormatter(logging.Formatter("%(message)s"))
        root.addHandler(screen)
    logging.captureWarnings(capture=True)
