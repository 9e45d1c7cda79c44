"""CIFAR-10 from the files of its authors, by torchvision, at 32 pixels or any other size."""

from __future__ import annotations

import fcntl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
import torchvision
from torchvision.transforms import v2

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PIXELS = 32


class _AnyCIFAR10(torchvision.datasets.CIFAR10):  # type: ignore[misc]
    """CIFAR-10 whose files need not be the published ones, so that a subset in the same format loads as well."""

    train_list: ClassVar[list[list[str | None]]] = [[f"data_batch_{i}", None] for i in range(1, 6)]
    test_list: ClassVar[list[list[str | None]]] = [["test_batch", None]]
    meta: ClassVar[dict[str, str | None]] = {"filename": "batches.meta", "key": "label_names", "md5": None}


def cifar10(root: str, train: bool = True, size: int = PIXELS, augment: bool = False, download: bool = False) -> Any:
    """CIFAR-10 as normalised images (3, size, size) float32 and classes 0 .. 9.

    Args:
        root: the folder that holds ``cifar-10-batches-py``.
        train: the 50,000 rows to train on, or the 10,000 to test on.
        size: pixels per side.
        augment: random crops and flips, for training.
        download: fetch the archive where the folder is missing.

    Raises:
        ValueError: where the files are missing, with the place to put them.
    """
    try:
        if download:
            _fetch(Path(root))
        return _AnyCIFAR10(root, train=train, transform=_transform(size, augment))
    except (RuntimeError, OSError) as error:
        folder = Path(root) / _AnyCIFAR10.base_folder
        raise ValueError(
            f"no CIFAR-10 in data.root={root}: unpack cifar-10-python.tar.gz so that {folder}/data_batch_1 exists, "
            f"or fetch it with vars.download=true where there is a network ({error})"
        ) from error


def _fetch(root: Path) -> None:
    """Download and unpack, in one process at a time, and put the folder in its place when it is whole."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".cifar10.lock").open("w") as lock, TemporaryDirectory(dir=root) as part:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / _AnyCIFAR10.base_folder).exists():
            torchvision.datasets.CIFAR10(part, download=True)
            (Path(part) / _AnyCIFAR10.base_folder).rename(root / _AnyCIFAR10.base_folder)


def _transform(size: int, augment: bool) -> v2.Compose:
    resize = [v2.Resize(size, antialias=True)] if size != PIXELS else []
    move = [v2.RandomCrop(size, padding=size // 8), v2.RandomHorizontalFlip()] if augment else []
    tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*resize, *move, *tensor])
