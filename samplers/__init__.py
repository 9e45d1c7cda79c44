"""Samplers with fixed global batches: the same rows in every optimizer step, on any number of devices.

Index arithmetic alone: the standard library, numpy and torch. A training loop of one's own, on every rank::

    sampler = FixedGlobalBatchSampler(dataset, global_size=256, max_per_device=64, tail="pad")
    rows_done = 0
    for place, (inputs, targets) in enumerate(DataLoader(dataset, batch_sampler=sampler)):
        share = sampler.share(place)
        with nullcontext() if share.last_in_step else model.no_sync():
            losses = criterion(model(inputs), targets)  # one for each row
            # DistributedDataParallel divides by the number of ranks, hence the factor.
            (losses[: share.real_rows].sum() * world_size / share.global_rows).backward()
        if share.last_in_step:
            optimizer.step()
            optimizer.zero_grad()
            rows_done = min(rows_done + 256, len(dataset))
            save(sampler.state_dict(rows_done))  # loads on any number of ranks

In the loops of others the sampler is made once the process group exists, and finds its rank there:

* Lightning: in `train_dataloader`, with `Trainer(use_distributed_sampler=False)`; Lightning moves the epochs.
* Accelerate: leave the loader out of `accelerator.prepare`, which would deal its batches again, and move batches to
  `accelerator.device`.
* Ignite: `engine.run(DataLoader(dataset, batch_sampler=sampler), max_epochs=10)`, without `auto_dataloader`.
* torchdata: `StatefulDataLoader(dataset, batch_sampler=sampler)`, whose `state_dict` then holds that of the sampler.

These do not know `share`: with them take `tail="drop"` and a global size that the ranks divide, so that the mean over
ranks is the mean over rows.
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
from samplers.passes import TAILS, Share
from samplers.plan import BatchPlan
from samplers.randomness import SeededRows
from samplers.report import PlanReport
from samplers.stream import FixedGlobalBatchStream

__all__ = [
    "TAILS",
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
