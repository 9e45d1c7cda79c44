"""Every global batch keeps the proportions of the classes."""

from __future__ import annotations

import heapq
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from samplers.orders.batched import SizedOrder
from samplers.orders.columns import as_codes, digest

if TYPE_CHECKING:
    from samplers.permutation import Integers

__all__ = ["Stratified", "fair_sequence"]


class Stratified(SizedOrder):
    """Each row once per epoch, and in every global batch each class as often as its share of the rows says.

    After any number of global batches a class has had its exact proportion, rounded up or down; within a global batch
    it is thus less than two rows away from it. The rows of a class and the places in a global batch are shuffled
    anew every epoch.

    Args:
        labels: one label per row, whole numbers or texts.
        seed: any whole number.
        global_size: rows of a global batch; the sampler fills it in where None.

    Raises:
        ValueError: no labels, or labels that are neither whole numbers nor texts.
    """

    def __init__(self, labels: Any, seed: int = 0, *, global_size: int | None = None) -> None:
        super().__init__(seed, global_size)
        self._codes, count = as_codes("labels", labels)
        pattern = fair_sequence(np.bincount(self._codes, minlength=count))
        self._slots = np.argsort(np.resize(pattern, self._codes.size), kind="stable")

    def __len__(self) -> int:
        return self._codes.size

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self._codes.size

    def _list(self, epoch: int) -> Integers:
        n, size = self._codes.size, self._size()
        dealt = np.empty(n, dtype=np.int64)
        dealt[self._slots] = np.lexsort((self._random("stratified rows", epoch, n), self._codes))
        return dealt[np.lexsort((self._random("stratified places", epoch, n), np.arange(n) // size))]

    def identity(self) -> dict[str, Any]:
        """Name, rows, seed, global size and a hash of the labels."""
        return {**self._identity("Stratified"), "labels": digest(self._codes)}


def fair_sequence(counts: Integers) -> Integers:
    """Return a sequence of classes, int64, in which every prefix has each class in proportion, rounded up or down.

    It is one period: as long as the counts divided by their greatest common divisor. Occurrence j (from 0) of a class
    with share s may come from slot floor(j / s) on and must have come by slot ceil((j + 1) / s) - 1; taking the
    earliest deadline among those that may come always succeeds (Baruah and others, "Proportionate progress", 1996).
    """
    divisor = gcd(*counts.tolist())
    wanted = [count // divisor for count in counts.tolist()]
    period = sum(wanted)
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(period)]
    waiting[0] = [(-(-period // count), code, 0) for code, count in enumerate(wanted)]
    ready: list[tuple[int, int, int]] = []
    sequence = np.empty(period, dtype=np.int64)
    for slot in range(period):
        for item in waiting[slot]:
            heapq.heappush(ready, item)
        waiting[slot] = []
        _, code, turn = heapq.heappop(ready)
        sequence[slot] = code
        count, following = wanted[code], turn + 1
        if following < count:
            entry = (-(-(following + 1) * period // count), code, following)
            waiting[following * period // count].append(entry)
    return sequence
