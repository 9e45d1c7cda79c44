"""Orders: pure functions from (epoch, positions) to the rows of a dataset."""

from samplers.orders.batched import Bucketed, Grouped
from samplers.orders.composed import Mixture, Repeated, Subset
from samplers.orders.drawn import FromSampler
from samplers.orders.plain import Sequential, Shuffled
from samplers.orders.protocol import BatchOrder, Order, prepare_all
from samplers.orders.sources import fitting_order, sequential_order, settled_order, shuffled_order
from samplers.orders.stratified import Stratified
from samplers.orders.weighted import Balanced, Weighted

__all__ = [
    "Balanced",
    "BatchOrder",
    "Bucketed",
    "FromSampler",
    "Grouped",
    "Mixture",
    "Order",
    "Repeated",
    "Sequential",
    "Shuffled",
    "Stratified",
    "Subset",
    "Weighted",
    "fitting_order",
    "prepare_all",
    "sequential_order",
    "settled_order",
    "shuffled_order",
]
