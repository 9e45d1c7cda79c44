"""The rows of a run: with random streams of their own where that is asked for, and dealt to the ranks."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from launcher.configure.devices import in_config_words
from launcher.configure.parts import build_order
from launcher.configure.schema import RunConfig
from launcher.data.loaders import reads_batches
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from launcher.seeds import stream_seed
from samplers import BatchPlan, FixedGlobalBatchSampler, SeededRows


def seeded(run: RunConfig, rows: Dataset[Any], option: str) -> Dataset[Any]:
    """Rows with random streams of their own, where that is asked for and they are read one by one."""
    if not run.seeds_rows or isinstance(rows, SeededRows) or (reads_batches(rows) and run.data.seeded_rows is None):
        return rows
    if reads_batches(rows):
        raise SettingsError(
            f"data.seeded_rows=true: {type(rows).__name__} of {option} reads whole batches (__getitems__ and "
            "collate_fn), and no row of them can have a random stream of its own; let it read single rows"
        )
    return SeededRows(rows, stream_seed(run.seed, "rows", option))  # type: ignore[arg-type]


def sampler_of(
    run: RunConfig, plan: BatchPlan, rank: Rank, rows: Dataset[Any], *, compare_ranks: bool
) -> FixedGlobalBatchSampler:
    """What deals ``rows`` to a rank; a collective where ranks are compared.

    Raises:
        SettingsError: where the order, or the sampler, cannot be made.
    """
    try:
        return FixedGlobalBatchSampler(
            build_order(run, rows),
            global_size=plan.global_size,
            rank=rank.rank,
            world_size=plan.active,
            compare_ranks=compare_ranks,
            dataset=rows,
            tail=run.batch.tail,
            min_per_device=plan.min_per_device,
            max_per_device=plan.max_per_device,
            shard_rows=plan.shard_rows,
            pad_weight=run.batch.pad_weight,
        )
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error
