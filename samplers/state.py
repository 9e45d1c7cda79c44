"""The position of a sampler as a small JSON object: what is in it, and what must match when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samplers.settings import SettingTypeError, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VERSION", "Position", "check_matches", "read_position"]

VERSION = 1
"""Version of the states that are written; newer ones are refused, never guessed at."""


@dataclass(frozen=True)
class Position:
    """Where training stands: `rows` rows of `epoch` are done, of which the epoch before lent the first `carried`."""

    epoch: int = 0
    rows: int = 0
    carried: int = 0


def check_matches(state: Mapping[str, Any], own: Mapping[str, Any], *, global_size_may_change: bool) -> None:
    """Raise where `state` was not written by a sampler like the one that `own` describes.

    Raises:
        ValueError: another version, dataset size, order, global size or tail; both sides are shown. A state that is
            no mapping at all is a `SettingTypeError`.
    """
    if not hasattr(state, "keys"):
        raise SettingTypeError(f"state={state!r} is no mapping: give what state_dict returned")
    if state.get("version") != VERSION:
        raise ValueError(
            f"state has version={state.get('version')!r}, this sampler reads version={VERSION}: load it with the "
            "version of the package that wrote it"
        )
    differing = [key for key in own if state.get(key) != own[key]]
    if global_size_may_change and "global_size" in differing:
        differing.remove("global_size")
    if not differing:
        return
    sides = "; ".join(f"{key}: state {state.get(key)!r}, this sampler {own[key]!r}" for key in differing)
    remedy = "make the sampler as it was when the state was written"
    if differing == ["global_size"]:
        remedy += ", or set allow_global_size_change=True to continue by rows"
    raise ValueError(f"the state does not fit this sampler ({sides}): {remedy}")


def read_position(state: Mapping[str, Any], n: int, tail: str) -> Position:
    """Return the position in `state`, checked to lie within an epoch of `n` rows under `tail`."""
    remedy = "the state is damaged; load another"
    epoch, rows, carried = (
        whole_number(f"state[{key!r}]", state.get(key), minimum=0, remedy=remedy)
        for key in ("epoch", "rows", "carried")
    )
    if rows > n + carried:
        raise ValueError(f"state['rows']={rows} exceeds the {n + carried} rows of its epoch: {remedy}")
    # Not below the global size: the rows may have been carried under another one.
    most = n - 1 if tail == "carry" and epoch else 0
    if carried > most:
        raise ValueError(
            f"state['carried']={carried} is too large: tail={tail!r}, epoch={epoch} and n={n} allow {most}; {remedy}"
        )
    return Position(epoch, rows, carried)
