"""Advice as a user reads it, in plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from launcher.tune.advice import (
    USUAL_DECAY,
    USUAL_ROWS,
    WARM_UP_EPOCHS,
    Advice,
    Change,
    Split,
    in_usual_range,
    rescaled,
    steps_worth,
)
from launcher.tune.words import about, percent
from samplers.words import counted

INDENT = 17
"""Columns before the text, as in what a run says at its start."""


def in_words(advice: Advice) -> list[str]:
    """Lines of 120 columns at most."""
    parts = (
        ("devices", split_lines(advice)),
        ("tail", [tail_line(advice)]),
        ("BatchNorm", batchnorm_lines(advice)),
        ("noise scale", noise_lines(advice)),
        ("literature", literature_lines(advice.settings.global_size)),
        ("another batch", change_lines(advice)),
    )
    return list(chain.from_iterable(labelled(label, lines) for label, lines in parts))


def labelled(label: str, lines: Sequence[str]) -> list[str]:
    """The lines side by side, with a label before the first.

    >>> labelled("tail", ["none", "at all"])
    ['tail             none', '                 at all']
    """
    return [f"{label if not number else '':<{INDENT}}{line}" for number, line in enumerate(lines)]


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Cells in columns, two spaces apart; the last ``left`` columns are flushed left, the others right.

    >>> aligned([["a", "bb", "c"], ["10", "1", ""]], left=1)
    [' a  bb  c', '10   1']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">"] * (len(widths) - left) + ["<"] * left
    columns = list(zip(sides, widths, strict=True))
    lines = [[f"{cell:{side}{width}}" for cell, (side, width) in zip(row, columns, strict=True)] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]


def split_lines(advice: Advice) -> list[str]:
    """The same global batch on other numbers of devices; those that cannot have more say so."""
    size, settings = advice.max_per_device, advice.settings
    head = f"the global batch stays {settings.global_size} rows; with batch.max_per_device={size} a step is, on"
    return [head, *aligned([_split(each, settings.devices) for each in advice.splits], left=1)]


def _split(split: Split, devices: int) -> list[str]:
    name = counted(split.devices, "device") + " " * (split.devices == 1)
    here = " (as here)" if split.devices == devices else ""
    if split.report is None:
        return [name, f"refused: {reason(split.refused)}"]
    report = split.report
    low, high = report.smallest_share, report.largest_share
    micro = -(-high // report.micro_batches_per_step)
    many = f" = {report.micro_batches_per_step} micro-batches of {micro}" if report.micro_batches_per_step > 1 else ""
    idle = f"; {report.ranks_idle} idle" if report.ranks_idle else ""
    rows = f"{low}" if low == high else f"{low} to {high}"
    return [name, f"{report.ranks_working} x {rows} rows{many}{idle}{here}"]


def reason(refused: str | None) -> str:
    """Why a plan is refused, without the remedies.

    >>> reason("max_per_device=8 is too small: raise it")
    'max_per_device=8 is too small'
    """
    return (refused or "").partition(": ")[0]


def tail_line(advice: Advice) -> str:
    """What becomes of rows beyond the last whole global batch, which the number of devices does not change."""
    settings = advice.settings
    rest = settings.n % settings.global_size
    if not rest:
        return f"none: {settings.n:,} rows are {settings.n // settings.global_size} whole global batches"
    report = next((split.report for split in advice.splits if split.devices == settings.devices), None)
    fates = {
        "drop": "are left out of every epoch",
        "pad": "are filled up with repeated rows",
        "spread": "make a smaller last step",
        "carry": "open the next epoch",
    }
    fate = fates["drop"] if report is not None and report.rows_dropped else fates[settings.tail]
    share = percent(rest / settings.n)
    return f"{counted(rest, 'row')} of {settings.n:,} ({share}) {fate} (batch.tail={settings.tail})"


def batchnorm_lines(advice: Advice) -> list[str]:
    """How much the smallest BatchNorm map sees."""
    found = advice.smallest_map
    if found is None:
        return []
    values = f"{found.layer} sees the fewest values per channel: {found.values} ({found.values_per_row:g} per row)"
    if not found.few:
        return [f"{values}, its variance is known to {percent(found.error)}"]
    known = f"known to {percent(found.error)} only" if found.values > 1 else "not known at all"
    remedy = "batch.shard_rows" if advice.settings.batchnorm == "shard" else "batch.min_per_device"
    return [
        f"warning: {values}: its variance is {known};",
        f"raise {remedy}, or take batchnorm=sync (statistics of the whole global batch)",
    ]


def noise_lines(advice: Advice) -> list[str]:
    """The noise scale, what it is measured from, and what it says about twice the rows."""
    found, size = advice.noise_scale, advice.settings.global_size
    if found is None:
        return []
    if found.rows is None or found.low is None or found.high is None:
        return [f"not known: {found.why_not}"]
    band = f"{about(found.low)} to {about(found.high)}"
    measured = f"{found.micro_batches} micro-batches of {counted(found.micro_rows, 'row')}"
    worth = f"a step of {2 * size} rows is worth {steps_worth(found.rows, size):.2f} of {size} rows"
    return [
        f"{about(found.rows)} rows ({band}), from {measured} at the weights that the run starts from;",
        f"there {worth}, and more as the loss falls (McCandlish et al. 2018)",
    ]


def literature_lines(global_size: int) -> list[str]:
    """Where the global batch lies beside what the literature takes."""
    low, high = USUAL_ROWS
    place = in_usual_range(global_size)
    return [
        f"{global_size} rows lie {place} the {low} to {high} of usual small-batch training (Keskar et al. 2017)",
        "2 to 32 rows gave the best test accuracy on CIFAR and ImageNet (Masters & Luschi 2018)",
        "8,192 rows kept that of 256 on ImageNet, with linear lr and warm-up (Goyal et al. 2017)",
        "large batches kept that of small ones over as many steps, with lr by square root (Hoffer et al. 2017)",
    ]


def change_lines(advice: Advice) -> list[str]:
    """What would go with another global batch."""
    if not advice.changes:
        return []
    head = ["global_size", "steps/epoch", "lr linear", "lr sqrt", "warm-up", f"EMA {USUAL_DECAY}"]
    head += [f"BatchNorm {advice.momentum:g}"] if advice.momentum is not None else []
    rows = [_change(change, advice.momentum) for change in advice.changes if change.refused is None]
    refused = [f"{each.global_size} rows: refused: {reason(each.refused)}" for each in advice.changes if each.refused]
    why = [
        f"linear: for SGD, with {WARM_UP_EPOCHS} epochs of warm-up (Goyal et al. 2017); sqrt: Hoffer et al. 2017;",
        "for Adam a power between the two (McCandlish et al. 2018); averages follow the rows as before,",
        "1 - (1 - m)**k for k times the rows (Busbridge et al. 2023)",
    ]
    return [*aligned([head, *rows]), *refused, *why]


def _change(change: Change, momentum: float | None) -> list[str]:
    cells = [
        f"{change.global_size}",
        f"{change.steps_per_epoch}",
        _number(change.lr_linear),
        _number(change.lr_sqrt),
        f"{change.warm_up_steps} steps" if change.warm_up_steps else "-",
        f"{1 - rescaled(1 - USUAL_DECAY, change.factor):.5g}",
    ]
    return cells if momentum is None else [*cells, f"{rescaled(momentum, change.update_factor):.3g}"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
