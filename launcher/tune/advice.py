"""What follows from a micro-batch size for the global batch: numbers, from the settings and the plan.

The papers behind it, each for what it says:

- Keskar et al., "On Large-Batch Training for Deep Learning", 2017 (arXiv:1609.04836): small-batch training usually
  takes 32 to 512 rows; larger batches tend to generalise worse.
- Masters and Luschi, "Revisiting Small Batch Training for Deep Neural Networks", 2018 (arXiv:1804.07612): on CIFAR and
  ImageNet the best test accuracy came from 2 to 32 rows, over the widest range of learning rates.
- Hoffer et al., "Train longer, generalize better", 2017 (arXiv:1705.08741): the gap closes with as many steps as the
  small batch takes, a learning rate by the square root, and BatchNorm over small pieces ("ghost" batches).
- Goyal et al., "Accurate, Large Minibatch SGD", 2017 (arXiv:1706.02677): the linear rule with five epochs of warm-up
  keeps ResNet-50's accuracy on ImageNet up to 8,192 rows.
- McCandlish et al., "An Empirical Model of Large-Batch Training", 2018 (arXiv:1812.06162): the noise scale.
- Busbridge et al., "How to Scale Your EMA", 2023 (arXiv:2307.13813): a decay d becomes d**k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from launcher.tune.batchnorm_map import SmallestMap
from launcher.tune.noise_scale import NoiseScale
from samplers import BatchPlan, PlanReport

USUAL_ROWS = (32, 512)
"""What small-batch training usually takes (Keskar et al. 2017)."""
WARM_UP_EPOCHS = 5
"""Of Goyal et al. 2017, for a learning rate by the linear rule."""
USUAL_DECAY = 0.999
"""Of a moving average of weights, for which the rule is shown."""
FACTORS = (0.5, 2, 4, 8)
"""Of the global batch, for which it is told what a change would do."""
DEVICES = 8
"""Devices up to which the split is told, also where they cannot all be fed."""
MOST_DEVICES = 1024


@dataclass(frozen=True)
class Settings:
    """What of a run's settings and data bears on its batch.

    Attributes:
        n: rows of data.train.
        global_size: ``batch.global_size``.
        min_per_device: ``batch.min_per_device``.
        shard_rows: ``batch.shard_rows`` where shards are in force.
        tail: ``batch.tail``.
        devices: that train.
        batchnorm: ``batchnorm``.
        lr: ``optimizer.lr``; None: the optimizer has none of this name.
    """

    n: int
    global_size: int
    min_per_device: int = 16
    shard_rows: int | None = None
    tail: str = "drop"
    devices: int = 1
    batchnorm: str = "local"
    lr: float | None = None


@dataclass(frozen=True)
class Split:
    """The global batch on a number of devices.

    Attributes:
        devices: there are.
        report: an epoch on them; None: the plan refuses.
        refused: why it does.
    """

    devices: int
    report: PlanReport | None
    refused: str | None = None


@dataclass(frozen=True)
class Change:
    """What goes with another global batch, by the rules of the literature.

    Attributes:
        global_size: the other one.
        factor: times the global batch of now.
        lr_linear: the learning rate times the factor (Goyal et al. 2017; SGD).
        lr_sqrt: the learning rate times its square root (Hoffer et al. 2017; Adam and its like).
        steps_per_epoch: of an epoch.
        warm_up_steps: for the learning rate by the linear rule; 0 for a smaller batch.
        update_factor: times the rows of now between two updates of BatchNorm's running statistics.
        refused: why the plan has none; None: it has one.
    """

    global_size: int
    factor: float
    lr_linear: float | None
    lr_sqrt: float | None
    steps_per_epoch: int
    warm_up_steps: int
    update_factor: float
    refused: str | None = None


@dataclass(frozen=True)
class Advice:
    """What follows from a micro-batch size.

    Attributes:
        settings: that it is about.
        max_per_device: the micro-batch size.
        splits: of the global batch on numbers of devices.
        changes: what other global batches would bring with them.
        noise_scale: of the gradient; None: it was not looked for.
        smallest_map: the BatchNorm layer with the fewest values; None: there is none, or it was not looked for.
        momentum: of the BatchNorm layers; None: there are none, or they average over all batches.
    """

    settings: Settings
    max_per_device: int
    splits: tuple[Split, ...]
    changes: tuple[Change, ...]
    noise_scale: NoiseScale | None = None
    smallest_map: SmallestMap | None = None
    momentum: float | None = None


def advise(settings: Settings, max_per_device: int) -> Advice:
    """What the micro-batch size means for this global batch, and what other global batches would bring with them."""
    splits = tuple(split(settings, max_per_device, devices) for devices in device_counts(settings))
    sizes = {round(settings.global_size * factor) for factor in FACTORS}
    changes = tuple(change(settings, max_per_device, size) for size in sorted(sizes) if size <= settings.n)
    return Advice(settings, max_per_device, splits, changes)


def device_counts(settings: Settings) -> list[int]:
    """1, 2, 4 ... as far as devices can be fed, to 8 at least; and those that the run has.

    >>> device_counts(Settings(n=1437, global_size=128, devices=3))
    [1, 2, 3, 4, 8]
    >>> device_counts(Settings(n=100_000, global_size=512))
    [1, 2, 4, 8, 16, 32]
    """
    most = max(DEVICES, min(MOST_DEVICES, settings.global_size // settings.min_per_device))
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {settings.devices})


def split(settings: Settings, max_per_device: int, devices: int) -> Split:
    """The global batch on ``devices`` devices."""
    try:
        return Split(devices, _plan(settings, max_per_device, devices).report(settings.n, settings.tail))
    except ValueError as error:
        return Split(devices, None, str(error))


def change(settings: Settings, max_per_device: int, global_size: int) -> Change:
    """What goes with another global batch on the devices that the run has."""
    factor = global_size / settings.global_size
    lr, other = settings.lr, replace(settings, global_size=global_size)
    now, then = (split(each, max_per_device, each.devices) for each in (settings, other))
    steps = then.report.steps_per_epoch if then.report else 0
    return Change(
        global_size=global_size,
        factor=factor,
        lr_linear=None if lr is None else lr * factor,
        lr_sqrt=None if lr is None else lr * math.sqrt(factor),
        steps_per_epoch=steps,
        warm_up_steps=WARM_UP_EPOCHS * steps if factor > 1 else 0,
        update_factor=_update_factor(now.report, then.report, factor, settings.batchnorm),
        refused=then.refused,
    )


def _update_factor(now: PlanReport | None, then: PlanReport | None, factor: float, batchnorm: str) -> float:
    """With ``batchnorm=shard`` running statistics move once per step, otherwise once per micro-batch."""
    if batchnorm == "shard" or now is None or then is None:
        return factor
    return factor * now.micro_batches_per_step / then.micro_batches_per_step


def rescaled(momentum: float, factor: float) -> float:
    """The share that a moving average takes of each new value, so that it follows the rows as fast as before.

    Args:
        momentum: the share of now, 1 - decay of an average of weights.
        factor: times the rows of now between two values.

    >>> round(rescaled(0.1, 2), 4), round(rescaled(0.1, 0.5), 4), rescaled(0.1, 1)
    (0.19, 0.0513, 0.1)
    """
    return momentum if factor == 1 else 1 - (1 - momentum) ** factor


def steps_worth(noise_scale: float, global_size: int, factor: float = 2) -> float:
    """Steps of now that one with ``factor`` times the rows is worth: McCandlish et al. 2018, section 2.2.

    >>> round(steps_worth(1e9, 128), 3), round(steps_worth(128, 128), 3), round(steps_worth(1e-9, 128), 3)
    (2.0, 1.333, 1.0)
    """
    return (1 + noise_scale / global_size) / (1 + noise_scale / (factor * global_size))


def in_usual_range(global_size: int) -> str:
    """Where a global batch lies beside the usual 32 to 512 rows: ``below``, ``within`` or ``above``."""
    low, high = USUAL_ROWS
    return "below" if global_size < low else "above" if global_size > high else "within"


def rows_of_statistics(settings: Settings, max_per_device: int) -> int:
    """The fewest rows that BatchNorm takes its statistics over, on the devices that the run has."""
    if settings.batchnorm == "sync":
        return settings.global_size
    if settings.batchnorm == "shard" and settings.shard_rows:
        return settings.global_size // (settings.global_size // settings.shard_rows)
    report = split(settings, max_per_device, settings.devices).report
    return report.smallest_micro_batch if report else min(max_per_device, settings.global_size)


def _plan(settings: Settings, max_per_device: int, devices: int) -> BatchPlan:
    return BatchPlan(
        global_size=settings.global_size,
        world_size=devices,
        min_per_device=settings.min_per_device,
        max_per_device=max_per_device,
        shard_rows=settings.shard_rows,
    )
