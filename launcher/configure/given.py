"""``command.json`` of a run folder: the command that began the run or continued it last, so that it can be repeated."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.configure.command_line import CommandLine, command_of, name_of, without_password

NAME = "command.json"
NOT_ITS_OWN = ("hydra.run.dir", "checkpoint.resume", "hydra.sweep", "hydra/sweep", "sweep.")
"""How settings begin that lead to another folder than the one to continue in, or are those of a sweep."""


@dataclass(frozen=True)
class Given:
    """A command as it was given.

    Attributes:
        folder: the folder that it was given in.
        line: its words.
    """

    folder: str
    line: CommandLine

    def to_json(self) -> str:
        """The form in which a run folder keeps it."""
        line = self.line
        kept = {
            "folder": self.folder,
            "config_dir": line.config_dir,
            "config_name": line.config_name,
            "overrides": [without_password(text) for text in line.overrides],
        }
        return json.dumps(kept, indent=1) + "\n"

    @classmethod
    def kept_in(cls, run_dir: Path) -> Given | None:
        """The command that a run folder keeps; None where it keeps none that can be read, or could be printed."""
        try:
            found = json.loads((run_dir / NAME).read_text(encoding="utf-8"))
            line = CommandLine(tuple(found["overrides"]), found["config_name"], found["config_dir"])
            given = cls(found["folder"], line)
            words = (given.folder, line.config_name, line.config_dir or "", *line.overrides)
            return given if all(word.isprintable() for word in words) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def continuing(self, run_dir: Path, ranks: int) -> str:
        """The whole command that continues the run of ``run_dir`` on so many ranks, for a shell."""
        kept = [text for text in self.line.overrides if not name_of(text).startswith(NOT_ITS_OWN)]
        line = replace(self.line, overrides=(*kept, f"hydra.run.dir={quoted(str(run_dir))}"))
        return f"cd {shlex.quote(self.folder)} && {command_of(line, ranks)}"


def quoted(text: str) -> str:
    """``text`` as a value that Hydra reads as it stands.

    >>> quoted("out/a"), quoted("a=1, b=2")
    ('out/a', '"a=1, b=2"')
    """
    if all(letter.isalnum() or letter in "/._-" for letter in text):
        return text
    # Backslashes are plain but before a quote, where one of each two stays.
    escaped = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + ("\\" if found[2] else "") + found[2], text)
    return f'"{escaped}"'
