"""torchvision's ResNet-18, for images of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from launcher.files import UNREADABLE


def resnet18(classes: int = 10, weights: str | None = None, *, small_images: bool = False) -> nn.Module:
    """Build torchvision's ResNet-18 with a last layer for ``classes``.

    Args:
        classes: outputs.
        weights: null, ``download`` for those that torchvision offers, or a file that holds its state dict. The last
            layer is left out where the number of classes differs.
        small_images: a first convolution of 3 x 3 without pooling, for images of 32 pixels; it is not taken from
            ``weights``.

    Raises:
        ValueError: where the weights cannot be found, downloaded or read, or are another model's.
    """
    model: nn.Module = torchvision.models.resnet18(num_classes=classes)
    if small_images:
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    if weights:
        _load_matching(model, _weights(weights), weights)
    return model


def _weights(source: str) -> dict[str, Tensor]:
    if source == "download":
        try:
            return torchvision.models.ResNet18_Weights.DEFAULT.get_state_dict(progress=False)  # type: ignore[no-any-return]
        except OSError as error:
            raise ValueError(f"weights=download: {error}; download the file elsewhere and set weights=PATH") from error
    if not Path(source).is_file():
        raise ValueError(
            f"weights={source}: there is no such file; give a state dict of torchvision's resnet18, `download` or null"
        )
    try:
        loaded: Any = torch.load(source, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise ValueError(f"weights={source}: cannot be read as a state dict ({type(error).__name__})") from error
    return loaded  # type: ignore[no-any-return]


def _load_matching(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    own = model.state_dict()
    if not isinstance(weights, dict) or weights.keys() != own.keys():
        raise ValueError(f"weights={source}: holds other names than a state dict of torchvision's resnet18")
    replaced = {
        name: own[name] for name in ("conv1.weight", "fc.weight", "fc.bias") if weights[name].shape != own[name].shape
    }
    model.load_state_dict({**weights, **replaced})
