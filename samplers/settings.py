"""Checks of what a user set: every message names the option, the value found, the rule and a remedy."""

from __future__ import annotations

import operator

__all__ = ["LARGEST", "SettingTypeError", "switch", "whole_number"]

LARGEST = 1 << 62
"""Most rows, positions or epochs: sums of two still fit 64 bits."""


class SettingTypeError(TypeError, ValueError):
    """A setting of the wrong type. It is a ValueError too, so that one `except` catches every wrong setting."""


def whole_number(
    option: str, value: object, *, minimum: int | None = None, maximum: int = LARGEST, remedy: str = ""
) -> int:
    """Return `value` as a plain int.

    Args:
        option: full name of the option, for the message.
        value: an int or anything that is one losslessly, such as a numpy integer; bools and floats are refused.
        minimum: the smallest value allowed; where None there is no largest one either.
        maximum: the largest value allowed.
        remedy: what to do about a wrong value.

    Raises:
        SettingTypeError: `value` is not a whole number.
        ValueError: `value` is below `minimum` or above `maximum`.
    """
    end = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or type(value).__name__ in {"bool_", "bool"}:
        raise SettingTypeError(f"{option}={value!r} is a bool: it must be a whole number{end}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise SettingTypeError(
            f"{option}={value!r} is of type {type(value).__name__}: it must be a whole number{end}"
        ) from None
    if minimum is not None and number < minimum:
        raise ValueError(f"{option}={number} is too small: it must be at least {minimum}{end}")
    if minimum is not None and number > maximum:
        raise ValueError(f"{option}={number} is too large: it must be at most {maximum}{end}")
    return number


def switch(option: str, value: object) -> bool:
    """Return `value` if it is a bool.

    Raises:
        SettingTypeError: it is anything else, also 0 or 1.
    """
    if not isinstance(value, bool):
        raise SettingTypeError(f"{option}={value!r}: it must be True or False; give a bool, no number or text")
    return value
