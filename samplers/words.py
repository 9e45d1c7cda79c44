"""Numbers in messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, thing: str, form: str = "") -> str:
    """Say how many, in singular or plural.

    Args:
        number: of things.
        thing: the word for one of them; its plural ends in -s, or in -es after an s.
        form: how the number is formatted, as "," with a comma at thousands.

    >>> counted(1, "device"), counted(2, "process"), counted(21120, "row", ",")
    ('1 device', '2 processes', '21,120 rows')
    """
    plural = "es" if thing.endswith("s") else "s"
    return f"{number:{form}} {thing}{'' if number == 1 else plural}"
