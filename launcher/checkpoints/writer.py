"""Work that goes on beside training: one piece at a time, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Writer(Generic[Result]):
    """Does one piece of work at a time.

    Args:
        background: whether in a thread, so that who gives the work goes on meanwhile.
    """

    def __init__(self, background: bool) -> None:
        self.background = background
        self._thread: threading.Thread | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a piece of work is being done."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], Result]) -> None:
        """Begin a piece of work, after the one before is done and its result was taken."""
        assert self._thread is None, "take the result first"  # noqa: S101 - our own mistake
        self._thread = threading.Thread(target=self._do, args=(work,), name="evenshard writer", daemon=True)
        self._thread.start()
        if not self.background:
            self._thread.join()

    def result(self, patience_s: float | None = None) -> Result | None:
        """Wait for the work that is being done, at most ``patience_s`` seconds, and take its result, once.

        Returns:
            The result; None where there is none, or it took longer.

        Raises:
            Exception: the one that ended the work.
        """
        if self._thread is None:
            return None
        self._thread.join(patience_s)
        if self._thread.is_alive():
            return None
        result, error = self._result, self._error
        self._thread = self._result = self._error = None
        if error is not None:
            raise error
        return result

    def _do(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
            self._error = error
