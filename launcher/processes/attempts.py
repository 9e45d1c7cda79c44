"""Which attempt the ranks of several nodes belong to: each elastic agent counts its own restarts, and not alike.

An agent whose ranks failed counts a restart; one that joins it does not, nor does one that has come since. So rank 0
counts, and every other rank asks it, under a name that no rank had before.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from torch.distributed import Store

from launcher.processes.environment import Rank

ASKED = "attempt/asked"
BEGUN = "attempt/begun"
SEVERAL = "attempt/several nodes"


class Attempt:
    """Rank 0 of an attempt, which tells the others that ask.

    Args:
        store: that the ranks meet at, and those before them met at.
        number: of the attempt.
    """

    def __init__(self, store: Store, number: int) -> None:
        self._store, self._number = store, number
        self._answered: set[int] = set()

    def answer(self) -> None:
        """Tell those that have asked by now; those of earlier attempts, too, who do not hear it any more."""
        for asked in set(range(1, self._store.add(ASKED, 0) + 1)) - self._answered:
            if self._store.check([f"{ASKED}/{asked}"]):
                name = self._store.get(f"{ASKED}/{asked}").decode()
                self._store.set(f"attempt/{name}", str(self._number))
                self._answered.add(asked)


def agreed(rank: Rank, store: Store) -> tuple[Rank, Attempt | None]:
    """This rank as one of the attempt that all of them belong to; on rank 0, what tells the others.

    Returns:
        The rank as it is where only one agent has counted so far, or a scheduler does.
    """
    if not rank.store_outlives_ranks:
        return rank, None
    one_agent = rank.one_node and not store.check([SEVERAL])
    if rank.rank and not one_agent:
        name = uuid.uuid4().hex
        store.set(f"{ASKED}/{store.add(ASKED, 1)}", name)
        return replace(rank, attempt=int(store.get(f"attempt/{name}"))), None
    number = store.add(BEGUN, 0 if rank.rank else 1) - 1
    if one_agent:
        return rank, None
    store.set(SEVERAL, "")
    return replace(rank, attempt=number), Attempt(store.clone(), number)
