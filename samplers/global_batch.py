"""The batch sampler whose global batches are the same on any number of ranks."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from samplers.agreement import check_agreement, compares_ranks
from samplers.dealt import DealtSampler
from samplers.orders import fitting_order, prepare_all, shuffled_order
from samplers.passes import Pass, Share, check_pad_weight, check_tail
from samplers.plan import BatchPlan
from samplers.ranks import resolve_ranks
from samplers.settings import SettingTypeError, switch, whole_number
from samplers.state import VERSION, Position, check_matches, read_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from samplers.report import PlanReport

__all__ = ["FixedGlobalBatchSampler"]

_log = logging.getLogger(__name__)


class FixedGlobalBatchSampler(DealtSampler):
    """Yields this rank's micro-batches, lists of dataset indices; give it to a DataLoader as `batch_sampler`.

    Global batch number k of an epoch holds the same rows whatever the number of ranks, the size of micro-batches, the
    number of workers and the place where training was interrupted. (With `spread` and without shards, whether the tail
    makes a step depends on the number of ranks; whole global batches do not.) Its rows are dealt to ranks like cards.
    Every rank yields the same number of micro-batches, none smaller than `min_per_device`.

    With `shard_rows` the rows are dealt to shards, which do not depend on the number of ranks, and a rank takes
    neighbouring shards. Its micro-batches are made of whole shards, and `share` says which. Where each is a single
    shard and the ranks do not divide the shards, some ranks yield one micro-batch less per step: a collective belongs
    behind the last micro-batch of a step then.

    After a whole pass, iterating again moves to the next epoch by itself; an abandoned pass is repeated. A pass is
    whole when its last micro-batch was drawn. The workers of a loader draw ahead, so where a loop may break off, call
    `set_epoch` before every pass. One pass at a time: of two iterators only the newer one counts.

    Args:
        source: a dataset with `__len__`, a number of rows, an order, or a torch sampler that does not deal to ranks.
        global_size: rows of one optimizer step over all ranks.
        rank: this rank; with `world_size` left out too, both come from torch.distributed.
        world_size: number of ranks.
        seed: of the shuffle, 0 where None; an order that has its own seed must have the same.
        tail: rows beyond the last whole global batch: `drop` leaves them out; `pad` fills the batch with rows from
            the start of the epoch's order; `spread` makes a smaller step of them where every rank gets
            `min_per_device` rows (every shard, where there are shards), and else leaves them out; `carry` opens the
            next epoch with them.
        min_per_device: fewest rows of a micro-batch.
        max_per_device: most rows of a micro-batch, None for no limit; larger shares are accumulated.
        shard_rows: fewest rows of a shard, of which a global batch has global_size // shard_rows; None for no shards.
        pad_weight: 0, padded rows do not count, or 1, they count like any other.
        allow_global_size_change: whether a state written with another global size is continued, by rows.
        compare_ranks: whether the ranks of torch.distributed compare their settings and positions at the start of
            a pass; where None, if rank and world size were left out.
        dataset: is told the epoch by `set_epoch` at the start of every pass, see `SeededRows`; the source itself where
            it is such a dataset.

    Raises:
        ValueError: settings that contradict each other or have no effect, a rank that would idle, or no step in an
            epoch.

    >>> sampler = FixedGlobalBatchSampler(10, 4, rank=0, world_size=2, min_per_device=1)
    >>> len(sampler), sampler.share(1)
    (2, Share(step=1, rows=2, real_rows=2, global_rows=4, last_in_step=True, shards=range(0, 0)))
    """

    def __init__(  # noqa: PLR0913 - each setting is an option of its own
        self,
        source: object,
        global_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        seed: int | None = None,
        tail: str = "drop",
        min_per_device: int = 16,
        max_per_device: int | None = None,
        shard_rows: int | None = None,
        pad_weight: int = 0,
        allow_global_size_change: bool = False,
        compare_ranks: bool | None = None,
        dataset: object = None,
    ) -> None:
        self.rank, size = resolve_ranks(rank, world_size)
        self.plan = BatchPlan(global_size, size, min_per_device, max_per_device, shard_rows)
        self.plan.check_works(self.rank)
        self._world_size, self._most_rows = size, len(self.plan.micro_span(0, 0))
        self._compares = compares_ranks(compare_ranks, left_out=rank is None, world_size=size)
        self.order = fitting_order(shuffled_order(source, seed), self.plan.global_size, tail)
        self.n = len(self.order)
        self.tail = check_tail(self.plan, self.n, tail)
        self._tell_epoch = _epoch_setter(dataset, source)
        self._pad_counts = check_pad_weight(pad_weight)
        self._global_size_may_change = switch("allow_global_size_change", allow_global_size_change)
        self._phase = 0  # with `carry`: where global batches are cut in the endless row of epochs, modulo global_size
        self._whole = False
        self._reported = self._said = False
        self._passes = 0
        self._drawn = 0
        self._exhausted = False  # whether its iterator has said that there is no more
        self._described = -1  # the last micro-batch that `share` was asked about
        self._finished = False  # whether training has said that it is through, by `share` or `state_dict`
        self._iterator: weakref.ref[Iterator[list[int]]] | None = None
        self._pass = self._pass_at(Position())

    def __iter__(self) -> Iterator[list[int]]:
        """Start the next pass: a new epoch after a whole pass, else the same pass again."""
        if self._whole:
            self._warn_of_moving()
            self._enter(self._pass.epoch + 1)
        elif self._drawn:
            _log.warning(
                "The pass of epoch %d was abandoned after %d of %d micro-batches and is repeated; call set_epoch to "
                "move on",
                self.epoch,
                self._drawn,
                self._pass.micro_batches(self.rank),
            )
        self._start(self._pass)
        rows = self._run(self._pass, self._passes)
        self._iterator = weakref.ref(rows)
        return rows

    def _warn_of_moving(self) -> None:
        """Say where moving on may leave rows out: workers draw ahead, so drawn does not mean trained on."""
        last = self._pass.micro_batches(self.rank) - 1
        if self._described in {-1, last} and (self._exhausted or self._finished):
            return
        _log.warning(
            "Epoch %d was drawn to its end, but nothing says that training got there (the last micro-batch that share "
            "was asked about: %s of %d), and epoch %d begins; call set_epoch before every pass to choose it",
            self.epoch,
            "none" if self._described < 0 else self._described + 1,
            last + 1,
            self.epoch + 1,
        )

    def _run(self, current: Pass, number: int) -> Iterator[list[int]]:
        # Not in __iter__: loaders call that twice, and some ranks may do so when others do not.
        self._begin(current)
        count = current.micro_batches(self.rank)
        for drawn, rows in enumerate(current.draw(self.rank, self.order), start=1):
            if number == self._passes:
                self._drawn = drawn
                self._whole = drawn == count
            yield rows
        if number == self._passes:
            self._exhausted = True

    def _begin(self, current: Pass) -> None:
        if self._compares:
            check_agreement({**self._identity(), "pass": current.facts()})
            prepare_all(self.order, [current.epoch - 1, current.epoch] if current.carried else [current.epoch])
        self._tell_epoch(current.epoch)
        self._say_left_out()

    def _say_left_out(self) -> None:
        """Say once, on rank 0, which rows no epoch has; who has read the report knows of the tail."""
        if self.rank or self._said:
            return
        dropped = 0 if self._reported else self.report().rows_dropped
        if dropped:
            _log.info("tail=%r leaves %d of %d rows out of every epoch", self.tail, dropped, self.n)
        if unused := getattr(self.order, "rows_left_out", 0):
            _log.info("%s leaves %d rows out of every epoch", type(self.order).__name__, unused)
        self._said = True

    def __len__(self) -> int:
        """Micro-batches that iterating will yield on this rank, exactly; of the current pass while it is iterated over.

        A pass is iterated over as long as something holds its iterator: the loop, or a loader with persistent workers.
        """
        held = self._iterator is not None and self._iterator() is not None
        current = self._pass_of(self._pass.epoch + 1) if self._whole and not held else self._pass
        return current.micro_batches(self.rank)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}

    @property
    def epoch(self) -> int:
        """Epoch of the current pass."""
        return self._pass.epoch

    @property
    def sampler(self) -> FixedGlobalBatchSampler:
        """This sampler itself: Lightning and Accelerate look for `set_epoch` at the sampler of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass.

        The epoch of a state that was loaded keeps its position, also where its pass was abandoned; another epoch starts
        at its beginning. So does the same epoch once training is through with it: `share` was asked about the last
        micro-batch, or `state_dict` about its end. (That the micro-batches were drawn says nothing: workers draw
        ahead.)
        """
        wanted = whole_number("epoch", epoch, minimum=0, remedy="count epochs from 0")
        if wanted != self._pass.epoch or (self._whole and self._finished):
            self._enter(wanted)
        elif self._whole:
            self._start(self._pass)

    def share(self, micro_batch: int) -> Share:
        """Describe micro-batch number `micro_batch` (from 0) of the current pass, in O(1).

        Raises:
            IndexError: the pass has no such micro-batch.
        """
        number, count = (
            whole_number("micro_batch", micro_batch, remedy="count the micro-batches of the pass from 0"),
            self._pass.micro_batches(self.rank),
        )
        if not 0 <= number < count:
            raise IndexError(
                f"micro_batch={number} lies outside the pass of epoch {self.epoch}, which has {count} micro-batches: "
                f"it must be from 0 to {count - 1}"
            )
        self._described = max(self._described, number)
        self._finished |= number == count - 1
        return self._pass.share(self.rank, number)

    def global_batch(self, step: int) -> list[int]:
        """Dataset indices of the rows that count in a global batch of the current epoch, over all ranks, by position.

        Args:
            step: its number, counted from the start of the epoch, as `Share.step` counts it.

        Raises:
            IndexError: the pass has no such step.
        """
        first = self._pass.start // self.plan.global_size
        number = whole_number("step", step, remedy="count the steps of the epoch from 0")
        if not first <= number < first + self._pass.steps:
            raise IndexError(
                f"step={number} lies outside the pass of epoch {self.epoch}: it must be from {first} to "
                f"{first + self._pass.steps - 1}"
            )
        rows: list[int] = self._pass.rows_of(number - first, self.order).tolist()
        return rows

    def report(self) -> PlanReport:
        """Describe an epoch of this sampler: data in fields, text by `str()`."""
        self._reported = True
        return self.plan.report(self.n, self.tail)

    def state_dict(self, rows_done: int | None = None) -> dict[str, Any]:
        """Return the position after `rows_done` rows as a small JSON object, the same on every rank.

        Args:
            rows_done: rows of the current pass's epoch that training has finished with, over all ranks, counted from
                the start of the epoch (also in a pass that was resumed). The loop knows; the sampler does not, since
                the workers of a loader draw ahead. Where None, those of the steps that were drawn whole: for loaders
                that ask after every draw and keep the answer with its batch, as torchdata's StatefulDataLoader does.

        Raises:
            ValueError: training cannot stand there: not between two steps of the current pass.
        """
        rows = self._pass.rows_drawn(self.rank, self._drawn) if rows_done is None else rows_done
        position = self._position_after(whole_number("rows_done", rows, minimum=0, remedy="count finished rows"))
        self._finished |= rows_done is not None and position.epoch > self.epoch
        return {
            "version": VERSION,
            "epoch": position.epoch,
            "rows": position.rows,
            "carried": position.carried,
            **self._identity(),
        }

    def _position_after(self, rows: int) -> Position:
        current, step = self._pass, self.plan.global_size
        if rows == current.end or (rows == current.places and current.tail != "carry"):
            return self._next_position()
        if current.start <= rows < current.end and (rows - current.start) % step == 0:
            return Position(current.epoch, rows, current.carried)
        raise ValueError(
            f"rows_done={rows} is no place between two steps of epoch {current.epoch}: this pass starts at "
            f"{current.start} rows, takes global_size={step} per step and ends at {current.end}; count the rows of "
            "finished steps from the start of the epoch"
        )

    def _next_position(self) -> Position:
        carried = self._pass.places - self._pass.end if self.tail == "carry" else 0
        return Position(self._pass.epoch + 1, 0, carried)

    def load_state_dict(self, state: Mapping[str, Any], *, allow_global_size_change: bool | None = None) -> None:
        """Continue where `state` stands, on any number of ranks and with any micro-batch size.

        Args:
            state: what `state_dict` returned on any rank of any world.
            allow_global_size_change: overrides the constructor's for this call.

        Raises:
            ValueError: the state does not fit: both sides are shown.
        """
        may_change = self._global_size_may_change
        if allow_global_size_change is not None:
            may_change = switch("allow_global_size_change", allow_global_size_change)
        check_matches(state, self._identity(), global_size_may_change=may_change)
        position = read_position(state, self.n, self.tail)
        self._phase = (position.epoch * self.n - position.carried + position.rows) % self.plan.global_size
        self._start(self._pass_at(position))
        if self._pass.steps == 0:
            self._start(self._pass_at(self._next_position()))

    def _identity(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "order": self.order.identity(),
            "global_size": self.plan.global_size,
            "tail": self.tail,
        }

    def _enter(self, epoch: int) -> None:
        if epoch == 0:
            self._phase = 0
        self._start(self._pass_of(epoch))

    def _start(self, current: Pass) -> None:
        self._pass = current
        self._whole = self._exhausted = self._finished = False
        self._drawn, self._described = 0, -1
        self._iterator = None
        self._passes += 1

    def _pass_of(self, epoch: int) -> Pass:
        """The whole pass of an epoch."""
        carried = (epoch * self.n - self._phase) % self.plan.global_size if self.tail == "carry" and epoch else 0
        return self._pass_at(Position(epoch, 0, carried))

    def _pass_at(self, position: Position) -> Pass:
        return Pass(
            plan=self.plan,
            n=self.n,
            tail=self.tail,
            epoch=position.epoch,
            start=position.rows,
            carried=position.carried,
            pad_counts=self._pad_counts,
        )


def _epoch_setter(dataset: object, source: object) -> Callable[[int], object]:
    """What tells a dataset its epoch; nothing for one that does not ask, or for a sampler, which is no dataset."""
    if dataset is not None and not (hasattr(dataset, "__getitem__") or hasattr(dataset, "set_epoch")):
        raise SettingTypeError(f"dataset={dataset!r} is no dataset: give the one whose rows are drawn, or leave it out")
    told = source if dataset is None else dataset
    setter = getattr(told, "set_epoch", None)
    return setter if callable(setter) and not isinstance(told, Sampler) else _ignore


def _ignore(_epoch: int) -> None:
    pass
