"""Reading the parts of a stream: each by one rank and one worker, row after row in a fixed turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from samplers.settings import SettingTypeError
from samplers.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ENDED", "PartReader", "check_parts", "read_parts"]

ENDED = object()
"""Stands for the row of a part that has no more."""

_CHUNK = 16
"""Rows that a worker sends at once."""


Chunk: TypeAlias = "tuple[int, list[Any], bool, int | None]"


class PartReader(IterableDataset[Chunk]):
    """Reads some parts of a stream in turn; yields (part, rows, whether it has ended, how far it was read past).

    How far: None, or the rows that were read past where they were fewer than wanted. That comes once, with the end.

    Row number t of the whole stream is row number t // parts of part t mod parts. Where the source is one dataset,
    part p is every parts-th row of it from row p on; where it is a sequence of datasets, part p is the p-th of them.

    Args:
        source: one iterable dataset, or a sequence of them.
        parts: into how many parts the whole stream is cut.
        mine: the parts to read, over all workers of this loader.
        start: number of the first row of the whole stream that is wanted.
    """

    def __init__(self, source: Any, parts: int, mine: Sequence[int], start: int) -> None:
        self.source = source
        self.parts = parts
        self.mine = mine
        self.start = start

    def __iter__(self) -> Iterator[Chunk]:
        worker = get_worker_info()
        mine = self.mine if worker is None else self.mine[worker.id :: worker.num_workers]
        open_parts: dict[int, Iterator[Any] | None] = dict.fromkeys(mine)
        while open_parts:
            for part, opened in list(open_parts.items()):
                rows, passed = (opened, None) if opened is not None else self._open(part)
                open_parts[part] = rows
                chunk = list(islice(rows, _CHUNK))
                ended = len(chunk) < _CHUNK
                if ended:
                    del open_parts[part]
                yield part, chunk, ended, passed

    def _open(self, part: int) -> tuple[Iterator[Any], int | None]:
        """Rows of a part from `start` on, and how many there were before, where too few."""
        skipped = max(0, -(-(self.start - part) // self.parts))
        one = not isinstance(self.source, Sequence)
        rows = iter(self.source if one else self.source[part])
        wanted = part + skipped * self.parts if one else skipped
        passed = sum(1 for _ in islice(rows, wanted))
        return islice(rows, 0, None, self.parts if one else 1), None if passed == wanted else passed


class read_parts:  # noqa: N801 - used like a function, with a state
    """The rows of a reader, by part: `take(part)` gives the next one, or `ENDED`."""

    def __init__(self, reader: PartReader, workers: int, options: dict[str, Any]) -> None:
        loader: Iterable[Chunk] = (
            DataLoader(reader, batch_size=None, num_workers=workers, **options) if workers else reader
        )
        self._reader = reader
        self._incoming = iter(loader)
        self._waiting: dict[int, deque[Any]] = {part: deque() for part in reader.mine}
        self._open = set(reader.mine)
        self._passed: dict[int, int] = {}

    def take(self, part: int) -> Any:
        """Return the next row of `part`, reading on as far as needed."""
        waiting = self._waiting[part]
        while not waiting and part in self._open:
            other, rows, ended, passed = next(self._incoming)
            self._waiting[other].extend(rows)
            if ended:
                self._open.discard(other)
            if passed is not None:
                self._passed[other] = passed
        return waiting.popleft() if waiting else ENDED

    def reached(self, *, every: bool) -> int:
        """Rows of the whole stream that there are, at most those up to the start, as far as these parts tell.

        This takes rows, so ask once no more are wanted.

        Args:
            every: count to the first row that is missing, else to the last one that is there.
        """
        found = []
        for part in self._reader.mine:
            self.take(part)  # until a part has sent something, nothing is known of it
            found.append(self._reach(part, every=every))
        return min(found) if every else max(found)

    def _reach(self, part: int, *, every: bool) -> int:
        start, parts, passed = self._reader.start, self._reader.parts, self._passed.get(part)
        if passed is None:
            return start
        if not isinstance(self._reader.source, Sequence):
            return min(start, passed)
        last = (passed - 1) * parts + part + 1 if passed else 0
        return min(start, passed * parts + part if every else last)


def check_parts(source: object, world_size: int) -> int | None:
    """Return how many parts a source has, None for one dataset that can be cut into any number.

    Raises:
        ValueError: parts that cannot be dealt evenly to the ranks, or a source that is no stream
            (`SettingTypeError`).
    """
    if isinstance(source, IterableDataset):
        return None
    if not isinstance(source, Sequence) or isinstance(source, str | bytes):
        raise SettingTypeError(
            f"source={type(source).__name__} is no stream: give an IterableDataset, or a sequence of iterables, one "
            "for each part; for a dataset with positions take FixedGlobalBatchSampler"
        )
    for place, part in enumerate(source):
        _check_part(place, part)
    if len(source) == 0 or len(source) % world_size:
        raise ValueError(
            f"source has {counted(len(source), 'part')}, which world_size={world_size} ranks cannot share evenly: give "
            f"a number of parts that {world_size} divides, such as {max(1, len(source) // world_size + 1) * world_size}"
        )
    return len(source)


def _check_part(place: int, part: object) -> None:
    if isinstance(part, str | bytes) or not hasattr(part, "__iter__"):
        raise SettingTypeError(f"source[{place}]={part!r} cannot be read row by row: give an iterable for each part")
    if hasattr(part, "__next__"):
        raise SettingTypeError(
            f"source[{place}]={type(part).__name__} is an iterator, which can be read only once: give an iterable that "
            "starts again every epoch"
        )
