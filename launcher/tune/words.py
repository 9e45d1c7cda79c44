"""Numbers of bytes as people read them."""

from __future__ import annotations

STEP = 1024


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> in_bytes(512), in_bytes(3 * 2**20), in_bytes(23.5 * 2**30)
    ('512 bytes', '3.0 MiB', '23.5 GiB')
    """
    if abs(count) < STEP:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= STEP
        if abs(count) < STEP:
            return f"{count:.1f} {unit}"
    return f"{count / STEP:.1f} TiB"
