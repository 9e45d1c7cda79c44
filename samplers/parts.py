"""Reading the parts of a stream: each by one rank and one worker, row after row in a fixed turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from samplers.settings import SettingTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ENDED", "PartReader", "check_parts", "read_parts"]

ENDED = object()
"""Stands for the row of a part that has no more."""

_CHUNK = 16
"""Rows that a worker sends at once."""


class PartReader(IterableDataset[tuple[int, list[Any], bool]]):
    """Reads some parts of a stream in turn; yields (part, rows, whether the part has ended).

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

    def __iter__(self) -> Iterator[tuple[int, list[Any], bool]]:
        worker = get_worker_info()
        mine = self.mine if worker is None else self.mine[worker.id :: worker.num_workers]
        open_parts = {part: self._rows(part) for part in mine}
        while open_parts:
            for part, rows in list(open_parts.items()):
                chunk = list(islice(rows, _CHUNK))
                ended = len(chunk) < _CHUNK
                if ended:
                    del open_parts[part]
                yield part, chunk, ended

    def _rows(self, part: int) -> Iterator[Any]:
        skipped = max(0, -(-(self.start - part) // self.parts))
        if isinstance(self.source, Sequence):
            return islice(iter(self.source[part]), skipped, None)
        return islice(iter(self.source), part + skipped * self.parts, None, self.parts)


class read_parts:  # noqa: N801 - used like a function, with a state
    """The rows of a reader, by part: `take(part)` gives the next one, or `ENDED`."""

    def __init__(self, reader: PartReader, workers: int, options: dict[str, Any]) -> None:
        loader: Iterable[tuple[int, list[Any], bool]] = (
            DataLoader(reader, batch_size=None, num_workers=workers, **options) if workers else reader
        )
        self._incoming = iter(loader)
        self._waiting: dict[int, deque[Any]] = {part: deque() for part in reader.mine}
        self._open = set(reader.mine)

    def take(self, part: int) -> Any:
        """Return the next row of `part`, reading on as far as needed."""
        waiting = self._waiting[part]
        while not waiting and part in self._open:
            other, rows, ended = next(self._incoming)
            self._waiting[other].extend(rows)
            if ended:
                self._open.discard(other)
        return waiting.popleft() if waiting else ENDED


def check_parts(source: object, world_size: int) -> int | None:
    """Return how many parts a source has, None for one dataset that can be cut into any number.

    Raises:
        ValueError: parts that cannot be dealt evenly to the ranks, or a source that is no stream
            (`SettingTypeError`).
    """
    if isinstance(source, IterableDataset):
        return None
    if not isinstance(source, Sequence) or isinstance(source, str):
        raise SettingTypeError(
            f"source={type(source).__name__} is no stream: give an IterableDataset, or a sequence of iterables, one "
            "for each part; for a dataset with positions take FixedGlobalBatchSampler"
        )
    if len(source) == 0 or len(source) % world_size:
        raise ValueError(
            f"source has {len(source)} parts, which world_size={world_size} ranks cannot share evenly: give a number "
            f"of parts that {world_size} divides, such as {max(1, len(source) // world_size + 1) * world_size}"
        )
    return len(source)
