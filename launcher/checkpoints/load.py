"""The weights behind ``checkpoint.load``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from launcher.checkpoints import store
from launcher.checkpoints.export import SUFFIX, read_export
from launcher.checkpoints.generation import named
from launcher.checkpoints.plain import read_state
from launcher.checkpoints.state import WEIGHTS, put_weights
from launcher.processes.errors import SettingsError


def load_weights(model: nn.Module, path: str) -> str:
    """Put the weights behind ``checkpoint.load`` into ``model``.

    Args:
        model: must have parameters and buffers of the same names and shapes.
        path: a run folder, ``best`` in it, its ``checkpoints/``, one generation, or a file that torch.save or
            safetensors wrote.

    Returns:
        Where they came from.

    Raises:
        SettingsError: where there are none, where none is whole, or where they are another model's.
    """
    source, weights = _find(named(f"checkpoint.load={path}", Path(path)))
    put_weights(model, weights, f"checkpoint.load={source}")
    return str(source)


def _find(path: Path) -> tuple[Path, Any]:
    """The weights, and where they are."""
    place = f"checkpoint.load={path}"
    if not path.exists():
        raise SettingsError(f"{place}: there is no such file or folder")
    if path.is_file():
        read = read_export if path.suffix == SUFFIX else read_state
        return path, read(place, path.read_bytes())
    problems = []
    for folder in store.candidates(path):
        try:
            content = store.read(folder, WEIGHTS)
        except store.DamagedError as error:  # noqa: PERF203 - few folders
            problems.append(str(error))
        except store.NewerError as error:
            raise SettingsError(f"{place}: {error}") from error
        else:
            return folder, read_state(f"checkpoint.load={folder}", content)
    raise SettingsError(f"{place}: no whole checkpoint: {'; '.join(problems) or 'nothing is kept there'}")
