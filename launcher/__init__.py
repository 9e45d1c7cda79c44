"""The same training run on any number of devices: the launcher around the fixed global batch of ``samplers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.call import RankError, launch

__all__ = ["RankError", "launch"]


def __getattr__(name: str) -> Any:
    """What is asked for, loaded when it is: torch takes seconds, and the command has words for signals until then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher import call  # noqa: PLC0415

    return getattr(call, name)
