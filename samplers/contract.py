"""The contract as checks that anyone's batch sampler can be put through, without processes or a GPU.

A sampler is handed over as a function `make(rank, world_size)` that returns a new batch sampler. It yields lists of
dataset indices; one that accumulates, pads or resumes also has `share(i)`, `set_epoch`, `state_dict(rows_done)` and
`load_state_dict` as `FixedGlobalBatchSampler` does. Each check raises `ContractError` with what it found.

>>> from samplers import FixedGlobalBatchSampler
>>> check_contract(
...     lambda rank, world: FixedGlobalBatchSampler(70, 32, rank, world, min_per_device=8), min_per_device=8
... )
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from samplers.passes import Share
from samplers.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from samplers.orders import Order

__all__ = [
    "ContractError",
    "GlobalBatch",
    "check_contract",
    "check_exactly_once",
    "check_no_starved_rank",
    "check_order",
    "check_resume",
    "check_same_batches",
    "global_batches",
]


_Rows: TypeAlias = "list[tuple[int, ...]]"

_UNKNOWN = -1


class ContractError(AssertionError):
    """A sampler breaks a promise; the message says which, where and with what numbers."""


@dataclass(frozen=True)
class GlobalBatch:
    """One optimizer step over all ranks.

    Attributes:
        step: its number, counted from the start of the epoch.
        shares: the micro-batches of each rank.
        real: indices of the rows that count, sorted.
        dealt: the same in the order of their positions, as position p goes to rank p mod ranks, or to shard p mod
            shards where shards are in force.
        shards: rows of each shard of each rank, padded ones included; empty where shards are not in force.
    """

    step: int
    shares: tuple[tuple[tuple[int, ...], ...], ...]
    real: tuple[int, ...]
    dealt: tuple[int, ...]
    shards: tuple[tuple[int, ...], ...] = ()

    @property
    def rows(self) -> int:
        """Rows over all ranks, padded ones included."""
        return sum(len(micro_batch) for share in self.shares for micro_batch in share)


def global_batches(samplers: Sequence[Any]) -> list[GlobalBatch]:
    """Run one pass of the samplers of all ranks and put its steps together.

    Raises:
        ContractError: ranks yield different numbers of steps, or of micro-batches where shards are not in force, or
            not as many as `len` says, or their shares contradict each other.
    """
    promised = [len(sampler) for sampler in samplers]
    passes = [[tuple(rows) for rows in sampler] for sampler in samplers]
    drawn = [len(rows) for rows in passes]
    _demand(drawn == promised, f"len says {promised} micro-batches on the ranks, iterating yields {drawn}")
    told = [
        [_Told(_share(sampler, place, rows), rows[place]) for place in range(len(rows))]
        for sampler, rows in zip(samplers, passes, strict=True)
    ]
    sharded = any(micro.share.shards for rank in told for micro in rank)
    _demand(sharded or len(set(drawn)) == 1, f"ranks yield different numbers of micro-batches: {drawn}")
    ranks = [_by_step(rank) for rank in told]
    counts = [len(steps) for steps in ranks]
    _demand(len(set(counts)) == 1, f"ranks take different numbers of steps: {counts}")
    return [_gather(shares, sharded=sharded) for shares in zip(*ranks, strict=True)]


class _Told(NamedTuple):
    """A micro-batch and what its sampler says of it."""

    share: Share
    rows: tuple[int, ...]


def _by_step(told: list[_Told]) -> list[list[_Told]]:
    """The micro-batches of one rank, those of a step together."""
    steps: list[list[_Told]] = []
    for place, micro in enumerate(told):
        if place == 0 or told[place - 1].share.last_in_step:
            steps.append([])
        steps[-1].append(micro)
    return steps


def _gather(shares: tuple[list[_Told], ...], *, sharded: bool) -> GlobalBatch:
    """Put together what the ranks have of one step."""
    told = [micro for share in shares for micro in share]
    step = told[0].share.step
    _demand(all(micro.share.step == step for micro in told), f"ranks disagree on which step follows: {step} on rank 0")
    counts = [len(share) for share in shares]
    _demand(sharded or len(set(counts)) == 1, f"step {step}: ranks have different numbers of micro-batches: {counts}")
    by_rank = [_hands(share, rank) for rank, share in enumerate(shares)]
    held = [hand for hands in by_rank for hand in hands]
    _demand(held == list(range(len(held))), f"step {step}: ranks hold shards {held}, not each once and in order")
    counting = [[row for row, real in hand if real] for hands in by_rank for hand in hands.values()]
    dealt = tuple(row for turn in zip_longest(*counting) for row in turn if row is not None)
    sums = {micro.share.global_rows for micro in told} - {_UNKNOWN}
    _demand(sums <= {len(dealt)}, f"step {step} has {len(dealt)} rows that count, share says {sorted(sums)}")
    return GlobalBatch(
        step,
        shares=tuple(tuple(micro.rows for micro in share) for share in shares),
        real=tuple(sorted(dealt)),
        dealt=dealt,
        shards=tuple(tuple(map(len, hands.values())) for hands in by_rank) if sharded else (),
    )


def _hands(share: list[_Told], rank: int) -> dict[int, list[tuple[int, bool]]]:
    """Rows of each shard that a rank holds, or without shards of the rank, each with whether it counts."""
    hands: dict[int, list[tuple[int, bool]]] = {}
    for told, rows in share:
        held = told.shards or [rank]
        for place, row in enumerate(rows):
            hands.setdefault(held[place % len(held)], []).append((row, place < told.real_rows))
    return hands


def _share(sampler: Any, place: int, drawn: _Rows) -> Share:
    """What the sampler says of a micro-batch; without `share`, a step of its own in which every row counts."""
    rows = len(drawn[place])
    if not hasattr(sampler, "share"):
        return Share(place, rows, rows, _UNKNOWN, last_in_step=True)
    share: Share = sampler.share(place)
    _demand(share.rows == rows, f"share({place}) says {share.rows} rows, the micro-batch has {rows}")
    return share


def check_same_batches(
    make: Callable[[int, int], Any], world_sizes: Iterable[int] = (1, 2, 3), epochs: int = 2
) -> None:
    """Contract 1: every step of every epoch has the same real rows, dealt like cards, on any number of ranks."""
    expected: dict[int, list[tuple[int, ...]]] = {}
    for world_size in world_sizes:
        world = _world(make, world_size)
        for epoch in range(epochs):
            _set_epoch(world, epoch)
            found = [batch.dealt for batch in global_batches(world)]
            wanted = expected.setdefault(epoch, found)
            _demand(
                found == wanted,
                f"epoch {epoch} has other global batches on {counted(world_size, 'rank')}: "
                f"{_first_difference(found, wanted)}",
            )


def check_no_starved_rank(
    make: Callable[[int, int], Any], world_sizes: Iterable[int] = (1, 2, 3), *, min_per_device: int = 1, epochs: int = 2
) -> None:
    """Contract 2: no micro-batch below `min_per_device` rows, and shares of a step differ by one row at most.

    With shards: no shard below that either, shards differ by one row at most and shares by one shard at most.
    """
    for world_size in world_sizes:
        world = _world(make, world_size)
        for epoch in range(epochs):
            _set_epoch(world, epoch)
            for batch in global_batches(world):
                where = f"epoch {epoch}, step {batch.step}, {counted(world_size, 'rank')}"
                smallest = min(len(rows) for share in batch.shares for rows in share)
                found = f"{where}: a micro-batch has {counted(smallest, 'row')}, not {min_per_device}"
                _demand(smallest >= min_per_device, found)
                _check_even(batch, where, min_per_device)


def _check_even(batch: GlobalBatch, where: str, min_per_device: int) -> None:
    if not batch.shards:
        sizes = [sum(map(len, share)) for share in batch.shares]
        _demand(max(sizes) - min(sizes) <= 1, f"{where}: shares differ by more than one row: {sizes}")
        return
    sizes, counts = [rows for shards in batch.shards for rows in shards], [len(shards) for shards in batch.shards]
    _demand(min(sizes) >= min_per_device, f"{where}: a shard has {counted(min(sizes), 'row')}, not {min_per_device}")
    _demand(max(sizes) - min(sizes) <= 1, f"{where}: shards differ by more than one row: {sizes}")
    _demand(max(counts) - min(counts) <= 1, f"{where}: shares differ by more than one shard: {counts}")


def check_resume(make: Callable[[int, int], Any], world_sizes: Iterable[int] = (1, 2, 3), epochs: int = 2) -> None:
    """Contract 4: stopped after any step, in any world, and resumed in any other, the same steps follow."""
    worlds = tuple(world_sizes)
    for first in worlds:
        for epoch in range(epochs):
            before = _world(make, first)
            _set_epoch(before, epoch)
            steps, following = global_batches(before), global_batches(before)
            _set_epoch(before, epoch)
            for stop in range(len(steps) + 1):
                state = _common_state(before, sum(step.rows for step in steps[:stop]))
                for second in worlds:
                    _check_continues(_world(make, second), state, steps[stop:] or following)


def _common_state(samplers: Sequence[Any], rows_done: int) -> Any:
    states = [sampler.state_dict(rows_done) for sampler in samplers]
    _demand(all(state == states[0] for state in states), f"ranks write different states after {rows_done} rows")
    _demand(json.loads(json.dumps(states[0])) == states[0], f"the state does not survive JSON: {states[0]}")
    return states[0]


def _check_continues(samplers: Sequence[Any], state: Any, expected: Sequence[GlobalBatch]) -> None:
    for sampler in samplers:
        sampler.load_state_dict(state)
    steps = global_batches(samplers)
    found, wanted = [step.dealt for step in steps], [step.dealt for step in expected]
    _demand(
        found == wanted,
        f"resumed on {counted(len(samplers), 'rank')} from {state}, other steps follow: "
        f"{_first_difference(found, wanted)}",
    )
    if all(hasattr(sampler, "share") for sampler in samplers):
        numbers, right = [step.step for step in steps], [step.step for step in expected]
        _demand(numbers == right, f"resumed from {state}, share numbers the steps {numbers}, expected {right}")


def check_exactly_once(make: Callable[[int, int], Any], n: int, world_sizes: Iterable[int] = (1, 2, 3, 4, 7)) -> None:
    """Evaluation: over all ranks each of the `n` rows once, no batch empty, `len` exact."""
    for world_size in world_sizes:
        seen: Counter[int] = Counter()
        for sampler in _world(make, world_size):
            batches = list(sampler)
            _demand(len(batches) == len(sampler), f"len says {len(sampler)} batches, iterating yields {len(batches)}")
            _demand(all(batches), f"an empty batch on {counted(world_size, 'rank')}")
            seen.update(row for batch in batches for row in batch)
        wrong = sorted((Counter(range(n)) - seen) + (seen - Counter(range(n))))
        _demand(not wrong, f"on {counted(world_size, 'rank')} these rows are not seen exactly once: {wrong[:10]}")


def check_order(order: Order, epochs: int = 2) -> None:
    """An order is pure, the same however it is asked, picklable, and its identity is JSON."""
    n = len(order)
    places = np.arange(min(n, 512), dtype=np.int64) * max(1, n // 512)
    copy = pickle.loads(pickle.dumps(order))  # noqa: S301 - our own bytes
    for epoch in [*range(epochs), 0]:
        rows = order.indices(epoch, places)
        _demand(rows.dtype == np.int64, f"indices are {rows.dtype}, not int64")
        _demand(rows.shape == places.shape, f"{places.shape} positions give {rows.shape} indices")
        _demand(bool((rows >= 0).all()), f"negative index {rows.min()}")
        backwards = copy.indices(epoch, places[::-1])[::-1]
        _demand(np.array_equal(rows, backwards), f"epoch {epoch}: a pickled copy asked backwards gives other rows")
        one = np.concatenate([order.indices(epoch, places[at : at + 1]) for at in range(0, len(places), 37)])
        _demand(np.array_equal(rows[::37], one), f"epoch {epoch}: asked one by one it gives other rows")
    identity = order.identity()
    _demand(json.loads(json.dumps(identity)) == identity, f"identity does not survive JSON: {identity}")


def check_contract(
    make: Callable[[int, int], Any], world_sizes: Iterable[int] = (1, 2, 3), *, min_per_device: int = 1, epochs: int = 2
) -> None:
    """Run every check on a training sampler; resume only where it has `state_dict`."""
    worlds = tuple(world_sizes)
    check_same_batches(make, worlds, epochs)
    check_no_starved_rank(make, worlds, min_per_device=min_per_device, epochs=epochs)
    if hasattr(make(0, worlds[0]), "state_dict"):
        check_resume(make, worlds, epochs)


def _world(make: Callable[[int, int], Any], world_size: int) -> list[Any]:
    return [make(rank, world_size) for rank in range(world_size)]


def _set_epoch(samplers: Iterable[Any], epoch: int) -> None:
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _first_difference(found: Sequence[object], wanted: Sequence[object]) -> str:
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"step {place} has rows {one}, expected {other}"
    return f"{len(found)} steps, expected {len(wanted)}"


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)
