"""What a run is: its weights, to bytes and back, and their digest."""

from __future__ import annotations

import io
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher.checkpoints import store
from launcher.files import UNREADABLE
from launcher.processes.errors import SettingsError

WEIGHTS = "model.pt"


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
    buffer = io.BytesIO()
    torch.save({n: v.cpu() if isinstance(v, Tensor) else v for n, v in model.state_dict().items()}, buffer)
    return buffer.getvalue()


def save_weights(root: Path, step: int, model: nn.Module) -> Path:
    """Keep the weights as the generation of ``step`` under ``root``."""
    return store.save(root, step, {WEIGHTS: weights_to_bytes(model)})


def load_weights(model: nn.Module, path: str) -> str:
    """Put the weights behind ``checkpoint.load`` into ``model``.

    Args:
        model: must have parameters and buffers of the same names and shapes.
        path: a run folder, its ``checkpoints/``, one generation, or a file that torch.save wrote.

    Returns:
        Where they came from.

    Raises:
        SettingsError: where there are none, where none is whole, or where they are another model's.
    """
    place, content = _find(Path(path))
    weights = _read(place, content)
    _check_names(model, weights, place)
    model.load_state_dict(weights)
    return str(place)


def _find(path: Path) -> tuple[Path, bytes]:
    if not path.exists():
        raise SettingsError(f"checkpoint.load={path}: there is no such file or folder")
    if path.is_file():
        return path, path.read_bytes()
    if (path / store.MANIFEST).exists():
        candidates = [path]
    else:
        candidates = store.generations(path / "checkpoints") or store.generations(path)
    problems = []
    for folder in candidates:
        try:
            return folder, store.read(folder, WEIGHTS)
        except store.DamagedError as error:  # noqa: PERF203 - few folders
            problems.append(str(error))
    raise SettingsError(
        f"checkpoint.load={path}: no whole checkpoint: {'; '.join(problems) or 'nothing is kept there'}"
    )


def _read(place: Path, content: bytes) -> Mapping[str, Any]:
    try:
        weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"checkpoint.load={place}: cannot be read as weights: {reason}") from error
    if not isinstance(weights, Mapping) or not all(isinstance(v, Tensor) for v in weights.values()):
        raise SettingsError(f"checkpoint.load={place}: holds {type(weights).__name__}, not a state dict of tensors")
    return weights


def _check_names(model: nn.Module, weights: Mapping[str, Tensor], place: Path) -> None:
    expected = model.state_dict()
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    shapes = [
        f"{name} is {tuple(weights[name].shape)} there, {tuple(value.shape)} here"
        for name, value in expected.items()
        if name in weights and value.shape != weights[name].shape
    ]
    found = [
        *([f"it lacks {_few(missing)}"] if missing else []),
        *([f"the model lacks {_few(unknown)}"] if unknown else []),
        *([_few(shapes)] if shapes else []),
    ]
    if found:
        raise SettingsError(
            f"checkpoint.load={place}: weights of another model: {'; '.join(found)}; give the settings of the run that "
            "they come from, as its config.yaml has them"
        )


def _few(names: list[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
