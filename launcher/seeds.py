"""Random streams: one for every purpose and place, all from the seed of the run."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np
import torch


def stream_seed(seed: int, *place: object) -> int:
    """The seed, 0 <= seed < 2**63, of a random stream of its own for every run seed and place."""
    digest = blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_streams(seed: int, *place: object) -> None:
    """Seed the random streams of python, numpy and torch from ``seed`` and a place, such as the rank.

    Of CUDA's, the one of the current device, once CUDA is in use.
    """
    number = stream_seed(seed, *place)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - the stream that datasets of others draw from
    torch.default_generator.manual_seed(number)  # torch.manual_seed asks every kind of device, 100 times slower
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(number)
