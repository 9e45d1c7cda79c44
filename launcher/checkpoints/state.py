"""What a run is: its weights, to bytes and back, and their digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from launcher.checkpoints.plain import Copies, snapshot, to_bytes
from launcher.processes.errors import SettingsError, few

WEIGHTS = "model.pt"
EXTRA_STATE = "_extra_state"
"""End of the names under which modules keep what is no tensor."""


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over parameters and buffers by sorted name: name, dtype and shape, then raw little-endian bytes."""
    digest = sha256()
    for name, tensor in sorted((*model.named_parameters(), *model.named_buffers()), key=lambda item: item[0]):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def weights_to_bytes(model: nn.Module) -> bytes:
    """The state dict of ``model``, on the CPU, as torch saves it."""
    return to_bytes(snapshot_of(model, Copies().of))


def snapshot_of(model: nn.Module, copy: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The state dict of ``model`` as it is now.

    Raises:
        SettingsError: where it holds something that a checkpoint cannot keep.
    """
    return snapshot("model", dict(model.state_dict()), copy)  # type: ignore[no-any-return]


def put_weights(model: nn.Module, weights: Any, place: str) -> None:
    """Put ``weights`` into ``model``, whose tensors stay where they are.

    Args:
        model: must have parameters and buffers of the same names and shapes.
        weights: a state dict.
        place: the setting and folder that they come from.

    Raises:
        SettingsError: where they are no state dict, or another model's.
    """
    if not isinstance(weights, Mapping) or not all(_fits_a_state_dict(name, v) for name, v in weights.items()):
        raise SettingsError(f"{place}: holds {type(weights).__name__}, not a state dict of tensors")
    _check_names(model, weights, place)
    model.load_state_dict(weights)


def _fits_a_state_dict(name: object, value: object) -> bool:
    return isinstance(value, Tensor) or str(name).endswith(EXTRA_STATE)


def _check_names(model: nn.Module, weights: Mapping[str, Any], place: str) -> None:
    expected = model.state_dict()
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    shapes = [
        f"{name} is {tuple(weights[name].shape)} there, {tuple(value.shape)} here"
        for name, value in expected.items()
        if isinstance(weights.get(name), Tensor) and value.shape != weights[name].shape
    ]
    found = [
        *([f"it lacks {few(missing)}"] if missing else []),
        *([f"the model lacks {few(unknown)}"] if unknown else []),
        *([few(shapes)] if shapes else []),
    ]
    if found:
        raise SettingsError(
            f"{place}: weights of another model: {'; '.join(found)}; give the settings of the run that they come "
            "from, as its config.yaml has them"
        )
