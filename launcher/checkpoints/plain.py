"""State as tensors and plain values, to bytes and back, so that reading it runs nobody's code."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.processes.errors import SettingsError, first_line

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)


def to_bytes(value: Any) -> bytes:
    """``value``, which is plain, as torch saves it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Copies:
    """Copies of tensors in the memory of the CPU, which stay as they are when the tensors change.

    Tensors that are one, as tied weights are, share a copy.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor."""
        value = tensor.detach()
        if value.layout != torch.strided:
            return value.to("cpu", copy=True)
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if place not in self._made or not value.numel():
            self._made[place] = value, value.to("cpu", copy=True)  # held, so that no other can come to lie there
        return self._made[place][1]


def snapshot(place: str, value: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """``value`` as it is now: tensors copied, numpy's numbers as Python's, lists and tuples of other kinds plain.

    Args:
        place: what it is the state of, for the message.
        value: tensors, numbers, texts, and lists, tuples and mappings of those.
        copy: gives the copy of a tensor, such as ``Copies().of``.

    Raises:
        SettingsError: where something in it is neither a tensor nor plain.
    """
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping):
        kind: Any = type(value) if type(value) in MAPPINGS else dict
        return kind(
            {snapshot(place, key, copy): snapshot(f"{place}[{key!r}]", item, copy) for key, item in value.items()}
        )
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(snapshot(f"{place}[{number}]", item, copy) for number, item in enumerate(value))
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
