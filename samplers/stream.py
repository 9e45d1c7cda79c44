"""Fixed global batches from a stream, which has no positions to draw and no length to know."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.utils.data import DataLoader, default_collate

from samplers.agreement import check_agreement, gathered
from samplers.parts import PartReader, check_parts, read_parts
from samplers.plan import BatchPlan
from samplers.ranks import resolve_ranks
from samplers.settings import SettingTypeError, switch, whole_number
from samplers.state import VERSION, check_matches
from samplers.stream_pass import StreamPass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from samplers.passes import Share

__all__ = ["FixedGlobalBatchStream"]

_OWN_OPTIONS = {
    "dataset",
    "batch_size",
    "sampler",
    "batch_sampler",
    "shuffle",
    "drop_last",
    "num_workers",
    "collate_fn",
}
"""Arguments of a DataLoader that the stream sets, or that make no sense with it."""

_log = logging.getLogger(__name__)


class FixedGlobalBatchStream:
    """Yields this rank's micro-batches of a stream, collated; it takes the place of the loader.

    Row number t of the stream stands in global batch t // global_size, on any number of ranks, workers and after any
    resume. Each part of the stream is read by one rank and one worker. Every rank yields the same number of
    micro-batches, none smaller than `min_per_device`: the ranks agree on the end, whatever the length of each part,
    once for several steps.

    One iterable dataset is cut into parts by counting: every reader reads past the rows of the others, so reading
    should be cheap and decoding happen in `collate_fn` or behind it. A sequence of iterables, such as one for each
    file, is read without waste; row t of the stream then is row t // parts of part t mod parts. A dataset must not
    deal to ranks or workers by itself. One that has `set_epoch` is told the epoch before each pass.

    After a whole pass, iterating again moves to the next epoch by itself; an abandoned pass is repeated. One pass at a
    time: of two iterators only the newer one counts.

    Args:
        source: an IterableDataset, or a sequence of iterables, as many as ranks or a multiple.
        global_size: rows of one optimizer step over all ranks.
        rank: this rank; with `world_size` left out too, both come from torch.distributed.
        world_size: number of ranks; more than one need a process group, to agree on the end.
        tail: at the end `drop` leaves rows out that fill no global batch, all that follow the end of the shortest
            part; `pad` keeps every row and repeats some, with weight 0, until each global batch is whole.
        min_per_device: fewest rows of a micro-batch.
        max_per_device: most rows of a micro-batch, None for no limit.
        workers: processes of each rank that read, 0 for none.
        collate_fn: makes a micro-batch of a list of rows.
        loader_options: further arguments of the DataLoader that runs the workers.
        allow_global_size_change: whether a state written with another global size is continued, by rows.

    Raises:
        ValueError: settings that contradict each other, or parts that the ranks cannot share evenly; on iterating, a
            stream that ends before the position of the state that was loaded.
    """

    def __init__(  # noqa: PLR0913 - each setting is an option of its own
        self,
        source: Any,
        global_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        tail: str = "drop",
        min_per_device: int = 16,
        max_per_device: int | None = None,
        workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        loader_options: Mapping[str, Any] | None = None,
        allow_global_size_change: bool = False,
    ) -> None:
        self.rank, size = resolve_ranks(rank, world_size)
        self.plan = BatchPlan(global_size, size, min_per_device, max_per_device)
        self.plan.check_works(self.rank)
        if tail not in ("drop", "pad"):
            raise ValueError(f"tail={tail!r}: a stream has no known end, so it must be 'drop' or 'pad'")
        self.tail = tail
        self.workers = whole_number("workers", workers, minimum=0, remedy="give 0 to read in this process")
        self.source = source
        self._given_parts = check_parts(source, size)
        self.parts = self._given_parts or size * max(1, self.workers)
        self._mine = range(self.rank, self.parts, size)
        if self.workers > len(self._mine):
            _log.warning(
                "workers=%d exceeds the %d parts of each rank: as many workers read, since a part is read by one",
                self.workers,
                len(self._mine),
            )
        if not callable(collate_fn):
            raise SettingTypeError(f"collate_fn={collate_fn!r} cannot be called: leave it out, or give a function")
        self._collate = collate_fn
        self._options = _checked_options(loader_options, self.workers)
        self._global_size_may_change = switch("allow_global_size_change", allow_global_size_change)
        self.epoch = 0
        self._last_step = self.plan.global_size  # most rows of the last step of the state that was loaded
        self._chosen = False  # whether set_epoch asked for the rest of a pass, even where nothing is left
        self._start(0)

    def _start(self, rows: int) -> None:
        self._pass = StreamPass(self.plan, self.rank, self.tail, rows)
        self._drawn = 0
        self._end: int | None = None  # rows at the end of the pass, once it is known
        self._passes = getattr(self, "_passes", 0) + 1

    def __iter__(self) -> Iterator[Any]:
        """Start the next pass: a new epoch after a whole pass, else the same pass again."""
        if self._end is not None:
            self.epoch += 1
        self._start(0 if self._end is not None else self._pass.first_row)
        return self._run(self._passes)

    def _run(self, number: int) -> Iterator[Any]:
        yield from self._draw(number)
        if number == self._passes and self._end == self._pass.first_row > 0 and not self._chosen:
            # The state that was loaded stood at the very end of its epoch.
            self.epoch += 1
            self._start(0)
            yield from self._draw(self._passes)

    def _draw(self, number: int) -> Iterator[Any]:
        current, end = self._pass, self._pass.first_row
        self._check_ranks()
        read = self._read()
        for step in current.steps(read, self.parts):
            for rows in current.micro_batches(step):
                if number == self._passes:
                    self._drawn += 1
                yield self._collate(rows)
            end += self.plan.global_size
        if end == 0:
            raise ValueError(
                f"global_size={self.plan.global_size} with tail={self.tail!r} leaves no whole global batch in the "
                "stream: lower global_size, give more rows (every part must have some), or set tail='pad'"
            )
        if end == current.first_row:
            self._check_reached(read, end)
        if number == self._passes:
            self._end = end

    def _check_reached(self, read: read_parts, rows: int) -> None:
        """Raise where the stream has ended before the `rows` rows that were to be read past, on every rank alike."""
        every = self.tail == "drop"
        mine = read.reached(every=every)
        found = gathered(mine) if self.plan.world_size > 1 else [mine]
        there = min(found) if every else max(found)
        # A padded last step has one row of its own at least.
        if there < (rows if every else rows - self._last_step + 1):
            raise ValueError(
                f"state['rows']={rows} lies beyond the end of the stream, which has {there} rows in epoch "
                f"{self.epoch}: give the stream that the state was written with, or load another state"
            )

    def _check_ranks(self) -> None:
        if self.plan.world_size == 1:
            return
        ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 0
        if ranks != self.plan.world_size:
            raise ValueError(
                f"world_size={self.plan.world_size} ranks must agree on the end of the stream, and the process group "
                f"has {ranks}: call torch.distributed.init_process_group with as many ranks first"
            )
        position = {"epoch": self.epoch, "rows": self._pass.first_row}
        check_agreement({**self._identity(), **position, "plan": asdict(self.plan)})

    def _read(self) -> read_parts:
        for dataset in [self.source] if self._given_parts is None else self.source:
            if callable(set_epoch := getattr(dataset, "set_epoch", None)):
                set_epoch(self.epoch)
        reader = PartReader(self.source, self.parts, self._mine, self._pass.first_row)
        return read_parts(reader, min(self.workers, len(self._mine)), self._options)

    def share(self, micro_batch: int) -> Share:
        """Describe micro-batch number `micro_batch` of the current pass, once it was drawn.

        Raises:
            IndexError: it was not drawn yet.
        """
        number = whole_number("micro_batch", micro_batch, remedy="count the micro-batches of the pass from 0")
        if self._drawn == 0:
            raise IndexError(
                f"micro_batch={number} was not drawn in the pass of epoch {self.epoch}, nor was any other: ask about "
                "one after it was drawn"
            )
        if not 0 <= number < self._drawn:
            raise IndexError(
                f"micro_batch={number} was not drawn in the pass of epoch {self.epoch}: it must be from 0 to "
                f"{self._drawn - 1}"
            )
        return self._pass.share(number)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; the epoch of a loaded state keeps its position.

        Where that position is the very end of the epoch, its pass is empty. Without this call such a pass would be
        that of the next epoch.
        """
        wanted = whole_number("epoch", epoch, minimum=0, remedy="count epochs from 0")
        self._chosen = True
        if wanted != self.epoch or self._end is not None:
            self.epoch = wanted
            self._start(0)

    def state_dict(self, rows_done: int) -> dict[str, Any]:
        """Return the position after `rows_done` rows as a small JSON object, the same on every rank.

        Args:
            rows_done: rows of this epoch that training has finished with, over all ranks, padded ones included,
                counted from the start of the epoch.

        Raises:
            ValueError: training cannot stand there: not between two steps that were drawn.
        """
        rows, size = (
            whole_number("rows_done", rows_done, minimum=0, remedy="count finished rows"),
            self.plan.global_size,
        )
        drawn = self._pass.first_row + self._drawn // self.plan.micro_count(self.rank) * size
        if not self._pass.first_row <= rows <= drawn or (rows - self._pass.first_row) % size:
            raise ValueError(
                f"rows_done={rows} is no place between two steps of epoch {self.epoch}: this pass starts at "
                f"{self._pass.first_row} rows, takes global_size={size} per step and was drawn up to {drawn}; count "
                "the rows of finished steps from the start of the epoch"
            )
        ended = rows == self._end
        position = {"epoch": self.epoch + ended, "rows": 0 if ended else rows}
        return {"version": VERSION, **position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any], *, allow_global_size_change: bool | None = None) -> None:
        """Continue where `state` stands, on any number of ranks and workers; rows that are done are read past.

        Raises:
            ValueError: the state does not fit: both sides are shown.
        """
        may_change = self._global_size_may_change
        if allow_global_size_change is not None:
            may_change = switch("allow_global_size_change", allow_global_size_change)
        check_matches(state, self._identity(), global_size_may_change=may_change)
        epoch, rows = (
            whole_number(f"state[{key!r}]", state.get(key), minimum=0, remedy="the state is damaged; load another")
            for key in ("epoch", "rows")
        )
        self._last_step = whole_number("state['global_size']", state.get("global_size"), minimum=1)
        self.epoch, self._chosen = epoch, False
        self._start(rows)

    def _identity(self) -> dict[str, Any]:
        return {"parts": self._given_parts, "global_size": self.plan.global_size, "tail": self.tail}


def _checked_options(options: object, workers: int) -> dict[str, Any]:
    """Return what the DataLoader of the workers is given, as a dict.

    Raises:
        ValueError: options that it does not know, that are the stream's own, or that no worker heeds; for anything but
            a mapping `SettingTypeError`.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise SettingTypeError(f"loader_options={options!r} is no mapping: give arguments of a DataLoader by name")
    for name, value in options.items():
        if name in _OWN_OPTIONS:
            raise ValueError(f"loader_options has {name}={value!r}, which the stream sets by itself: leave it out")
        if name not in inspect.signature(DataLoader).parameters:
            raise ValueError(f"loader_options has {name}={value!r}, which no DataLoader takes: leave it out")
    if options and workers == 0:
        raise ValueError(
            f"loader_options={dict(options)!r} have no effect with workers=0: set workers, or leave them out"
        )
    return dict(options)
