"""Parts of a run that keep a state of their own beside weights and optimizer: task, loss, buffers left out of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from launcher.checkpoints.plain import snapshot
from launcher.processes.errors import SettingsError, first_line
from launcher.processes.origin import users_place

MISFITS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError)
REMEDY = "give the settings and code of that run, or begin one with its weights by checkpoint.load"


@runtime_checkable
class Stateful(Protocol):
    """Has a state, of tensors, numbers, texts, and lists, tuples and mappings of those."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state as it is now; empty where there is nothing to keep."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> Any:
        """Take up a state, whose tensors lie on the CPU."""
        ...


class UnsavedBuffers:
    """The buffers that a model's state dict leaves out (``persistent=False``), by name."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Tensor]:
        """Their values."""
        saved = self._model.state_dict().keys()
        return {name: buffer for name, buffer in self._model.named_buffers() if name not in saved}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put values in their place; a buffer that is not there yet, or of another size, as caches are, is replaced.

        Raises:
            KeyError: for one that ``state`` lacks.
            AttributeError: for one of a module that the model does not have.
        """
        own = self.state_dict()
        if lacking := sorted(own.keys() - state.keys()):
            raise KeyError(f"no value of {', '.join(lacking)}")
        device = next(self._model.parameters()).device
        for name, value in state.items():
            module, _, key = name.rpartition(".")
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)
            else:
                self._model.get_submodule(module).register_buffer(key, value.to(device), persistent=False)


def stateful(**parts: Any) -> dict[str, Stateful]:
    """Those of ``parts`` that have a state.

    Raises:
        SettingsError: for one that gives its state and does not take it back, or the other way round.
    """
    for name, part in parts.items():
        gives, takes = (callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict"))
        if gives != takes:
            has, lacks = ("state_dict", "load_state_dict") if gives else ("load_state_dict", "state_dict")
            raise SettingsError(
                f"{name}: {type(part).__name__} has {has}() and no {lacks}(); add it, or leave out both"
            )
    return {name: part for name, part in parts.items() if isinstance(part, Stateful)}


def snapshot_states(parts: Mapping[str, Stateful], copy: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The states of ``parts`` as they are now; those that are empty are left out.

    Raises:
        SettingsError: where one is no mapping, or holds something that a checkpoint cannot keep.
    """
    states = {name: part.state_dict() for name, part in parts.items()}
    for name, state in states.items():
        if not isinstance(state, Mapping):
            raise SettingsError(f"{name}: state_dict() gives {type(state).__name__}; let it give a mapping")
    return {name: snapshot(name, state, copy) for name, state in states.items() if state}


def put_states(place: str, states: Mapping[str, Any], parts: Mapping[str, Stateful]) -> None:
    """Give ``parts`` the states that were kept of them.

    Args:
        place: the setting and folder that they come from, for messages.
        states: as ``snapshot_states`` gave them.
        parts: by the same names.

    Raises:
        SettingsError: where a state has nothing that takes it, a part has no state there, or both do not fit.
    """
    if unclaimed := sorted(states.keys() - parts.keys()):
        raise SettingsError(f"{place}: a state of {unclaimed[0]} is kept there, {unclaimed[0]} has none here; {REMEDY}")
    for name, part in parts.items():
        if name in states:
            _put(place, name, states[name], part)
        elif part.state_dict():
            raise SettingsError(f"{place}: {name} has a state here, and none is kept there; {REMEDY}")


def _put(place: str, name: str, state: Any, part: Stateful) -> None:
    try:
        part.load_state_dict(state)
    except MISFITS as error:
        reason = first_line(error) if str(error) else ""
        raise SettingsError(
            f"{place}: the state of {name} does not fit {name} here: {type(error).__name__}: {reason}"
            f"{users_place(error)}; {REMEDY}"
        ) from error
