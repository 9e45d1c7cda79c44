"""Whose code an exception comes from: the user's own, or a library's that the user's settings misused."""

from __future__ import annotations

import dis
import site
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import samplers

OWN_CODE = (Path(__file__).resolve().parent.parent, Path(samplers.__file__).resolve().parent)
LIBRARIES = (
    *(Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib")),
    Path(site.getusersitepackages()).resolve(),
)


MISFITS = (RuntimeError, ValueError, TypeError, IndexError, OSError)
"""What libraries raise for arguments that do not fit; anything else under the user's code is the user's bug."""


def is_users_own(error: BaseException) -> bool:
    """Whether ``error`` comes from the user's own code rather than from how a library was used.

    It does where the user's code raised it, or where it went through the user's code and is of a kind that libraries
    do not raise for arguments that do not fit. A RuntimeError that torch raised from an operation in the user's code,
    as for shapes that do not fit, counts as the library's.
    """
    frames = [frame for frame in _frames(error) if is_users_file(frame.tb_frame.f_code.co_filename)]
    if not frames:
        return False
    if not isinstance(error, MISFITS):
        return True
    last = _frames(error)[-1]
    if last is not frames[-1]:
        return False
    raised = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    return raised or not isinstance(error, RuntimeError)


def users_place(error: BaseException) -> str:
    """``" (file.py:12)"``, the innermost line of the user's code that ``error`` passed, or an empty string."""
    for frame in reversed(_frames(error)):
        file = frame.tb_frame.f_code.co_filename
        if is_users_file(file):
            return f" ({file}:{frame.tb_lineno})"
    return ""


def _frames(error: BaseException) -> list[TracebackType]:
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    return frames


@lru_cache
def is_users_file(file: str) -> bool:
    """Whether a file of code is the user's own, neither a library's nor this package's."""
    path = Path(file)
    return path.exists() and not any(path.resolve().is_relative_to(home) for home in (*OWN_CODE, *LIBRARIES))
