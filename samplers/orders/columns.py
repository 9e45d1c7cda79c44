"""What is known of every row: weights, labels, lengths, as checked arrays."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from samplers.settings import LARGEST, SettingTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samplers.permutation import Integers

__all__ = ["as_codes", "as_numbers", "as_rows", "digest"]


def as_numbers(option: str, values: Any, *, what: str) -> NDArray[np.float64]:
    """Return `values`, one number per row, as float64.

    Args:
        option: name of the option, for messages.
        values: a sequence, array or CPU tensor.
        what: what a value is, for messages ("a weight").

    Raises:
        ValueError: not one-dimensional, empty, negative, infinite or NaN; for values that are no numbers
            `SettingTypeError`.
    """
    column = _column(option, values)
    if column.dtype.kind not in "iuf":
        raise SettingTypeError(f"{option} holds values of type {column.dtype}: each must be a number")
    numbers = column.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers < 0))
    if wrong.size:
        raise ValueError(
            f"{option}[{wrong[0]}]={numbers[wrong[0]]}: {what} must be a finite number, 0 or more; "
            f"{wrong.size} of {numbers.size} values are not"
        )
    return numbers


def as_codes(option: str, values: Any) -> tuple[Integers, int]:
    """Return labels, one per row, as codes 0 to count - 1 in the order of their values (int64), and their count.

    Raises:
        ValueError: not one-dimensional or empty; for labels that are no ints, bools or texts `SettingTypeError`.
    """
    column = _column(option, values)
    if column.dtype.kind not in "iubUS":
        raise SettingTypeError(f"{option} holds values of type {column.dtype}: each must be a whole number or a text")
    kinds, codes = np.unique(column, return_inverse=True)
    return codes.astype(np.int64), len(kinds)


def as_rows(option: str, values: Any) -> Integers:
    """Return dataset indices as int64.

    Raises:
        ValueError: not one-dimensional, empty, negative or too large; for values that are no whole numbers
            `SettingTypeError`.
    """
    column = _column(option, values)
    if column.dtype.kind not in "iu":
        raise SettingTypeError(f"{option} holds values of type {column.dtype}: each must be the index of a row")
    if column.max() > LARGEST:
        place = int(column.argmax())
        raise ValueError(f"{option}[{place}]={column[place]}: an index must be at most {LARGEST}; give rows that exist")
    rows = column.astype(np.int64)
    if rows.min() < 0:
        place = int(rows.argmin())
        raise ValueError(f"{option}[{place}]={rows[place]}: an index must be 0 or more; count rows from the front")
    return rows


def digest(column: NDArray[Any]) -> str:
    """Return a short hash of a column, to tell it from another in a state."""
    return hashlib.blake2b(np.ascontiguousarray(column).tobytes(), digest_size=8).hexdigest()


def _column(option: str, values: Any) -> NDArray[Any]:
    try:
        column = np.asarray(values.detach() if isinstance(values, torch.Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingTypeError(f"{option} of type {type(values).__name__} is no column of values: {error}") from error
    if column.ndim != 1 or column.size == 0:
        raise ValueError(
            f"{option} has shape {column.shape}: it must be one-dimensional with one value for each row, and not empty"
        )
    return column
