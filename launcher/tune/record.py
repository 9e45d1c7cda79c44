"""``tune.json``: a tuning for machines.

=====================  =================================================================================================
field                  meaning
=====================  =================================================================================================
version                1; a field may be added to it, none changes its meaning
recommended            for ``batch.max_per_device``: override and yaml say it as one types it
fits                   the largest size that fits; exact: one row more does not; limited_by: memory, or what else
fast_enough            the smallest size with the part ``target`` of the best throughput; null: noise says why not
available_bytes        of the device with the least
load                   processes that ran or waited on this machine for each usable core
train_rows             of data.train
about                  where it was measured: device, ranks, precision, torch
probes                 in the order they ran: rows, fits, why_not, peak_bytes, step_s (each measured step), evaluate_s,
                       rows_per_s (of one device, by the median step), spread (slowest less fastest, of the median)
advice.splits          the global batch on numbers of devices: an epoch as mode=plan tells it, or why it is refused
advice.changes         other global batches: lr_linear, lr_sqrt, warm_up_steps, steps_per_epoch; ema_decay, for one of
                       0.999 now; batchnorm_momentum
advice.noise_scale     rows with the band low to high, in rows; rows null: why_not says why; null: not looked for
advice.smallest_map    the BatchNorm layer with the fewest values per channel; few: too few; null: there is none
=====================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from launcher.tune.advice import USUAL_DECAY, Advice, Change, rescaled
from launcher.tune.batchnorm_map import SmallestMap
from launcher.tune.result import Probe, Tuning

NAME = "tune.json"
VERSION = 1


def record(tuning: Tuning, advice: Advice | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``tune.json``."""
    return {
        "version": VERSION,
        "recommended": tuning.recommended,
        "override": override(tuning.recommended),
        "yaml": snippet(tuning.recommended),
        **{name: value for name, value in asdict(tuning).items() if name not in ("probes", "recommended")},
        "about": dict(about),
        "probes": [_probe(probe) for probe in tuning.probes],
        "advice": None if advice is None else _advice(advice),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "splits": [asdict(split) for split in advice.splits],
        "changes": [_change(change, advice.momentum) for change in advice.changes],
        "noise_scale": asdict(advice.noise_scale) if advice.noise_scale else None,
        "smallest_map": _smallest_map(advice.smallest_map) if advice.smallest_map else None,
    }


def override(rows: int) -> str:
    """What one types.

    >>> override(64)
    'batch.max_per_device=64'
    """
    return f"batch.max_per_device={rows}"


def snippet(rows: int) -> str:
    r"""What one pastes into a config.

    >>> snippet(64)
    'batch:\n  max_per_device: 64\n'
    """
    return f"batch:\n  max_per_device: {rows}\n"


def _probe(probe: Probe) -> dict[str, Any]:
    return {**asdict(probe), "rows_per_s": probe.rows_per_s, "spread": probe.spread}


def _change(change: Change, momentum: float | None) -> dict[str, Any]:
    then = None if momentum is None else rescaled(momentum, change.update_factor)
    return {**asdict(change), "ema_decay": 1 - rescaled(1 - USUAL_DECAY, change.factor), "batchnorm_momentum": then}


def _smallest_map(found: SmallestMap) -> dict[str, Any]:
    return {**asdict(found), "values": found.values, "error": found.error, "few": found.few}
