"""Samplers with fixed global batches: the same rows in every optimizer step, on any number of devices.

Index arithmetic alone: the standard library, numpy and torch.
"""

from samplers.contract import ContractError, check_contract, check_exactly_once, check_order
from samplers.exactly_once import ExactlyOnceSampler
from samplers.global_batch import FixedGlobalBatchSampler
from samplers.orders import (
    Balanced,
    BatchOrder,
    Bucketed,
    FromSampler,
    Grouped,
    Mixture,
    Order,
    Repeated,
    Sequential,
    Shuffled,
    Stratified,
    Subset,
    Weighted,
)
from samplers.passes import Share
from samplers.plan import BatchPlan
from samplers.randomness import SeededRows
from samplers.report import PlanReport
from samplers.stream import FixedGlobalBatchStream

__all__ = [
    "Balanced",
    "BatchOrder",
    "BatchPlan",
    "Bucketed",
    "ContractError",
    "ExactlyOnceSampler",
    "FixedGlobalBatchSampler",
    "FixedGlobalBatchStream",
    "FromSampler",
    "Grouped",
    "Mixture",
    "Order",
    "PlanReport",
    "Repeated",
    "SeededRows",
    "Sequential",
    "Share",
    "Shuffled",
    "Stratified",
    "Subset",
    "Weighted",
    "check_contract",
    "check_exactly_once",
    "check_order",
]
