"""Weights for others: a file that is read without this package."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from launcher.files import replace_durably
from launcher.processes.errors import SettingsError

log = logging.getLogger(__name__)

NAME = "model.safetensors"


def check_export(export: str | None) -> None:
    """Refuse ``checkpoint.export`` where its package is missing.

    Raises:
        SettingsError: with the remedy.
    """
    if export and find_spec(export) is None:
        raise SettingsError(f"checkpoint.export={export} needs the package {export}: pip install 'evenshard[export]'")


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
