"""State as tensors and plain values, to bytes and back, so that reading it runs nobody's code."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.processes.errors import SettingsError, first_line

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)


def to_bytes(place: str, value: Any) -> bytes:
    """``value`` as torch saves it, with its tensors on the CPU.

    Args:
        place: what it is the state of, for the message.
        value: tensors, numbers, texts, and lists, tuples and mappings of those.

    Raises:
        SettingsError: for anything else in it.
    """
    buffer = io.BytesIO()
    torch.save(plain(place, value), buffer)
    return buffer.getvalue()


def plain(place: str, value: Any) -> Any:
    """``value`` with tensors on the CPU and numpy's numbers as Python's.

    Raises:
        SettingsError: where something in it is neither a tensor nor plain.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping):
        kind: Any = type(value) if type(value) in MAPPINGS else dict
        return kind({key: plain(f"{place}[{key!r}]", item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return type(value)([plain(f"{place}[{number}]", item) for number, item in enumerate(value)])
    raise SettingsError(
        f"{place}: a checkpoint cannot keep {type(value).__module__}.{type(value).__qualname__}: reading it back would "
        "run code; let state_dict() give tensors, numbers, texts, lists and mappings"
    )


def read_state(place: str, content: bytes) -> Any:
    """What ``to_bytes``, or torch.save, made of tensors and plain values; no code in it is run.

    Args:
        place: the setting and file that it comes from, for the message.
        content: the file.

    Raises:
        SettingsError: where it is damaged, something else, or holds more than tensors and plain values.
    """
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SettingsError(
            f"{place}: cannot be read: it is damaged, or holds more than tensors and plain values, which is left "
            "alone since reading it could run code"
        ) from error
    except Exception as error:  # the bytes of anything may be there, and make anything of themselves
        reason = first_line(error) if str(error).strip() else type(error).__name__
        raise SettingsError(f"{place}: cannot be read: {reason}") from error
