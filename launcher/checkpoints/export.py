"""Weights for others: a file that is read without this package."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from launcher.files import replace_durably
from launcher.processes.errors import SettingsError, first_line

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
NAME = f"model{SUFFIX}"


def check_export(export: str | None) -> None:
    """Refuse ``checkpoint.export`` where its package is missing.

    Raises:
        SettingsError: with the remedy.
    """
    if export:
        _check_package(f"checkpoint.export={export}")


def export_weights(model: nn.Module, run_dir: Path) -> Path:
    """Write the parameters and buffers of ``model`` as plain contiguous tensors; tied ones under each of their names.

    Returns:
        The file, which replaces an earlier one as a whole.
    """
    from safetensors.torch import save  # noqa: PLC0415 - an extra

    state = dict(model.state_dict())
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if lacking := sorted(state.keys() - tensors.keys()):
        log.warning("%s holds tensors alone, and not %s", NAME, ", ".join(lacking))
    plain = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    replace_durably(run_dir / NAME, save(plain, {"format": "pt"}))
    return run_dir / NAME


def read_export(place: str, content: bytes) -> dict[str, Tensor]:
    """The tensors of a file that ``export_weights``, or safetensors, wrote.

    Args:
        place: the setting and file that it comes from, for the message.
        content: the file.

    Raises:
        SettingsError: where the package is missing, or the file is damaged or something else.
    """
    _check_package(place)
    from safetensors import SafetensorError  # noqa: PLC0415 - an extra
    from safetensors.torch import load  # noqa: PLC0415

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise SettingsError(f"{place}: cannot be read: {first_line(error)}") from error


def _check_package(place: str) -> None:
    if find_spec("safetensors") is None:
        raise SettingsError(f"{place} needs the package safetensors: pip install 'evenshard[export]'")
