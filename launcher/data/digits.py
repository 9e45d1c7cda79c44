"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, split once and for all into 1,437 and 360 rows."""

from __future__ import annotations

import numpy as np
import torch

from launcher.data.memory import InMemory

TEST_ROWS = 360


def digits(train: bool = True) -> InMemory:
    """The digits as images (rows, 1, 8, 8) float32 in [0, 1] and classes (rows,) int64 in 0 .. 9.

    Args:
        train: the 1,437 rows to train on, or the 360 to test on. The split does not change.

    Raises:
        ValueError: where scikit-learn, which brings the images, is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only this dataset needs it
    except ImportError as error:
        raise ValueError(
            "the digits come with scikit-learn, which is not installed: pip install 'evenshard[demo]'"
        ) from error
    images, classes = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    rows = order[TEST_ROWS:] if train else order[:TEST_ROWS]
    pixels = torch.from_numpy(images[rows]).float().view(-1, 1, 8, 8) / 16
    return InMemory(pixels, torch.from_numpy(classes[rows]).long())
