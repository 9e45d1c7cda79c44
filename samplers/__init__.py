"""Samplers with fixed global batches: the same rows in every optimizer step, on any number of devices.

Index arithmetic alone: the standard library, numpy and torch.
"""

from samplers.exactly_once import ExactlyOnceSampler
from samplers.global_batch import FixedGlobalBatchSampler
from samplers.orders import Order, Sequential, Shuffled
from samplers.passes import Share
from samplers.plan import BatchPlan
from samplers.report import PlanReport

__all__ = [
    "BatchPlan",
    "ExactlyOnceSampler",
    "FixedGlobalBatchSampler",
    "Order",
    "PlanReport",
    "Sequential",
    "Share",
    "Shuffled",
]
