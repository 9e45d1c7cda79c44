"""Why a sweep starts no more jobs, although it has some: all of them would end in the same way."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from launcher.sweep.jobs import Job, Record, Source

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
GONE = "the launcher that started these processes is gone: no more jobs are started; go on with the same command"


class LauncherGoneError(Exception):
    """Nobody is there any more who could have ranks started."""


def why_none_can_start(error: BaseException, folder: object) -> str:
    """Why no other job could be started either; empty where it is a matter of this job.

    Args:
        error: that kept a job from being started.
        folder: that was written to.
    """
    if isinstance(error, LauncherGoneError):
        return GONE
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return ""
    return (
        f"{folder} cannot be written ({error.strerror}): no more jobs are started; once there is room, the same "
        "command goes on"
    )


@dataclass
class LeftAlone:
    """A source that is asked and told nothing any more once it cannot write, or the sweep starts no more jobs.

    What it is not told it hears when the sweep goes on: it is in the sweep's file.

    Attributes:
        source: that.
        folder: of the sweep, where it writes.
        halted: why no more jobs are started; empty: they are.
    """

    source: Source
    folder: object
    halted: str = ""

    def ask(self) -> Job | None:
        """As the source does."""
        try:
            return None if self.halted else self.source.ask()
        except OSError as error:
            self._halt(error)
            return None

    def tell(self, record: Record) -> None:
        """As the source does."""
        try:
            if not self.halted:
                self.source.tell(record)
        except OSError as error:
            self._halt(error)

    def prunes(self, record: Record) -> bool:
        """As the source does."""
        try:
            return not self.halted and self.source.prunes(record)
        except OSError as error:
            self._halt(error)
            return False

    def _halt(self, error: OSError) -> None:
        self.halted = why_none_can_start(error, self.folder)
        if not self.halted:
            raise error
