"""The table of a tuning: what was measured of each micro-batch size, and which one is what."""

from __future__ import annotations

from statistics import median

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from launcher.tune.advice_words import aligned, labelled
from launcher.tune.result import Probe, Tuning
from launcher.tune.words import in_bytes, milliseconds, per_second, percent
from samplers.words import counted

WIDTH = 100
"""Columns of a terminal that the table needs."""
HEAD = ("rows", "memory", "of limit", "step", "spread", "rows/s", "evaluation", "")


def by_size(tuning: Tuning) -> list[Probe]:
    """The probes, smallest first."""
    return sorted(tuning.probes, key=lambda probe: probe.rows)


def cells(probe: Probe, tuning: Tuning) -> list[str]:
    """A row of the table, one cell for each of ``HEAD``."""
    peak = probe.peak_bytes
    used = ["", ""] if peak is None else [in_bytes(peak), percent(peak / max(1, tuning.available_bytes))]
    if not probe.fits:
        return [f"{probe.rows:,}", *used, "", "", "", "", f"does not fit: {probe.why_not}"]
    speed = [milliseconds(median(probe.step_s)), percent(probe.spread)] if probe.step_s else ["", ""]
    evaluate = "" if probe.evaluate_s is None else milliseconds(probe.evaluate_s)
    per_s = per_second(probe.rows_per_s) if probe.step_s else ""
    return [f"{probe.rows:,}", *used, *speed, per_s, evaluate, ", ".join(names(probe.rows, tuning))]


def names(rows: int, tuning: Tuning) -> list[str]:
    """What a size is called: recommended, fast enough, largest."""
    found = {"recommended": tuning.recommended, "fast enough": tuning.fast_enough, "largest that fits": tuning.fits}
    return [name for name, size in found.items() if size == rows]


def plain(tuning: Tuning) -> list[str]:
    """The table in plain lines."""
    return aligned([HEAD, *(cells(probe, tuning) for probe in by_size(tuning))], left=1)


def table(tuning: Tuning) -> Table:
    """The table for a terminal."""
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in HEAD:
        found.add_column(name, justify="right" if name else "left", no_wrap=bool(name))
    for probe in by_size(tuning):
        style = "bold green" if probe.rows == tuning.recommended else "" if probe.fits else "red"
        found.add_row(*(Text(cell) for cell in cells(probe, tuning)), style=style)
    return found


def answer(tuning: Tuning) -> list[str]:
    """What the table shows, in words: the largest size, the fast one, the recommended one, and how sure that is."""
    fits = counted(tuning.fits, "row", ",")
    if not tuning.exact:
        fits += f", limited by {tuning.limited_by}; whether a few more fit was not tried"
    elif tuning.limited_by == "memory":
        fits += ", limited by memory; one row more does not fit"
    else:
        fits += f", and more is ruled out: {tuning.limited_by}"
    available = f"{in_bytes(tuning.available_bytes)} are available on the device with the least"
    lines = [("fits", [fits, available]), ("fast enough", [_fast(tuning)]), ("noise", [noise(tuning)])]
    return [line for label, text in lines for line in labelled(label, text)]


def _fast(tuning: Tuning) -> str:
    if tuning.fast_enough is None:
        return f"not known: {tuning.noise or 'no size was measured'}"
    best = max(probe.rows_per_s for probe in tuning.probes)
    found = next(probe for probe in tuning.probes if probe.rows == tuning.fast_enough and probe.fits)
    reached = found.rows_per_s / best if best else 1.0
    return f"{counted(found.rows, 'row', ',')}: {per_second(found.rows_per_s)} rows/s, {percent(reached)} of the best"


def noise(tuning: Tuning) -> str:
    """How much the measured steps differ, and how busy the machine was."""
    spread = max((probe.spread for probe in tuning.probes if probe.step_s), default=0.0)
    return f"steps of one size differ by {percent(spread)} at most; load {tuning.load:.2f} for each usable core"
