"""What a sampler draws from: a dataset, a number of rows or an order, turned into an order."""

from __future__ import annotations

from collections.abc import Sized

from torch.utils.data import DataLoader, IterableDataset, Sampler

from samplers.orders.drawn import FromSampler
from samplers.orders.plain import Sequential, Shuffled
from samplers.orders.protocol import BatchOrder, Order
from samplers.settings import SettingTypeError, whole_number

__all__ = ["fitting_order", "rows_of", "sequential_order", "settled_order", "shuffled_order"]


def shuffled_order(source: object, seed: object) -> Order:
    """Return `source` if it is an order, what it draws if it is a sampler, else a shuffle under `seed` (0 where None).

    Raises:
        ValueError: the source has no rows, or is an order with another seed or none; for a source of the wrong kind
            `SettingTypeError`.
    """
    wanted = None if seed is None else whole_number("seed", seed, remedy="give any whole number, or None")
    if isinstance(source, Sampler):
        return FromSampler(source, 0 if wanted is None else wanted)
    if not isinstance(source, Order):
        return Shuffled(rows_of(source), 0 if wanted is None else wanted)
    own = getattr(source, "seed", None)
    if wanted is not None and own is None:
        raise ValueError(f"seed={wanted} has no effect on {type(source).__name__}: leave it out, or seed the order")
    if wanted is not None and own != wanted:
        raise ValueError(
            f"seed={wanted} contradicts the order, which was made with seed={own}: leave seed out here, or give both "
            "the same"
        )
    return source


def sequential_order(source: object) -> Order:
    """Return `source` if it is an order, what it draws if it is a sampler, else its rows as they stand."""
    if isinstance(source, Sampler):
        return FromSampler(source)
    return source if isinstance(source, Order) else Sequential(rows_of(source))


def settled_order(order: Order, user: str) -> Order:
    """Return `order` for `user`, which cannot fill in a global size.

    Raises:
        ValueError: it needs one.
    """
    if isinstance(order, BatchOrder) and getattr(order, "global_size", 0) is None:
        raise ValueError(
            f"global_size=None of the order {type(order).__name__} inside {user}, which cannot fill it in: set "
            "global_size in the inner order"
        )
    return order


def rows_of(source: object) -> int:
    """Return how many rows a dataset, or a number of rows, stands for; at least 1."""
    kind = type(source).__name__
    if isinstance(source, DataLoader):
        raise SettingTypeError(f"source={kind} is a loader: give the dataset, and give the sampler to the loader")
    if isinstance(source, IterableDataset):
        raise SettingTypeError(
            f"source={kind} is an IterableDataset, which has no positions to draw: give a dataset with __len__ and "
            "__getitem__"
        )
    if isinstance(source, str | bytes):
        raise SettingTypeError(f"source={source!r} is a text: give a dataset, its number of rows, or an order")
    try:
        size = len(source) if isinstance(source, Sized) else source
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        raise SettingTypeError(
            f"source={kind} has no length ({error!r}): give a dataset with rows, its number of rows, or an order"
        ) from error
    return whole_number(
        f"source={kind}: n" if size is not source else "source",
        size,
        minimum=1,
        remedy="give a dataset with rows, its number of rows, or an order",
    )


def fitting_order(order: Order, global_size: int, tail: str) -> Order:
    """Return `order`, with the global size filled in where it needs one.

    Raises:
        ValueError: it was made for another global size, or `carry` would shift its global batches.
    """
    if not isinstance(order, BatchOrder):
        return order
    fitting = order.with_global_size(global_size)
    if tail == "carry" and len(fitting) % global_size:
        raise ValueError(
            f"tail='carry' with the order {type(order).__name__} of n={len(fitting)} rows: the carried rows would "
            f"shift its global batches of global_size={global_size}; set tail='drop' or tail='pad'"
        )
    return fitting
