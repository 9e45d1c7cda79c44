"""A picture of a tuning: throughput and memory against the micro-batch size."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from launcher.tune.result import Probe, Tuning
from launcher.tune.table import by_size, noise
from launcher.tune.words import in_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = (7.2, 6.0)
DOTS_PER_INCH = 120
FAR = 3
"""Times the memory that was taken from which on what is available is not drawn to scale."""
GIB = 2.0**30
MIB = 2.0**20
BETWEEN = 16
"""Points of a line from one size to the next."""
LINE: Any = {"color": "tab:blue", "linewidth": 1.0, "alpha": 0.5}
SETTINGS: Any = {"text.parse_math": False, "text.usetex": False, "font.size": 9.0}
MARKS = {
    "largest that fits": ("tab:red", "v", 60),
    "fast enough": ("tab:green", "o", 90),
    "recommended": ("tab:orange", "*", 150),
}
"""Colour, shape and area."""


def picture(tuning: Tuning) -> bytes | None:
    """Draw the tuning as a PNG: its content; None where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return None
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    file = BytesIO()
    with mpl.rc_context(SETTINGS):
        figure_of(tuning).savefig(file, format="png")
    return file.getvalue()


def draw(content: bytes | None, path: Path) -> str | None:
    """Write a picture; returns what it lacks to be drawn, with the remedy, in one line; None: it is drawn."""
    if content is None:
        return f"{path.name} is not drawn: matplotlib is not installed: pip install 'evenshard[demo]'"
    path.write_bytes(content)
    return None


def figure_of(tuning: Tuning) -> Figure:
    """Throughput above, memory below, over the same sizes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    probes = by_size(tuning)
    _throughput(above, probes, tuning)
    _memory(below, probes, tuning)
    for axes in (above, below):
        _lines(axes, tuning)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    _sizes(below, [probe.rows for probe in probes])
    figure.suptitle(f"batch.max_per_device={tuning.recommended}", fontweight="bold")
    above.set_title(noise(tuning), fontsize=8, loc="left", color="dimgray")
    return figure


def between(probes: Sequence[Probe], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sizes, and what measured values make of them on straight lines from one size to the next.

    On an axis of powers of two a straight line is a curve, and joining its points would bend it the wrong way.

    >>> rows, values = between([Probe(1, fits=True), Probe(3, fits=True)], [10.0, 20.0])
    >>> rows[0], rows[8], rows[-1], values[0], values[8], values[-1]
    (1.0, 2.0, 3.0, 10.0, 15.0, 20.0)
    """
    rows, found = [float(probes[0].rows)], [values[0]]
    for (left, low), (right, high) in pairwise(zip(probes, values, strict=True)):
        parts = [part / BETWEEN for part in range(1, BETWEEN + 1)]
        rows += [left.rows + part * (right.rows - left.rows) for part in parts]
        found += [low + part * (high - low) for part in parts]
    return rows, found


def _throughput(axes: Axes, probes: Sequence[Probe], tuning: Tuning) -> None:
    """Rows per second by the median step; the bars reach from the slowest step to the fastest."""
    timed = [probe for probe in probes if probe.step_s]
    axes.set_ylabel("rows per second of one device")
    if not timed:
        return
    rows, seconds = between(timed, [median(probe.step_s) for probe in timed])
    axes.plot(rows, [size / time for size, time in zip(rows, seconds, strict=True)], **LINE)
    slowest, fastest = ([probe.rows / pick(probe.step_s) for probe in timed] for pick in (max, min))
    speeds = [probe.rows_per_s for probe in timed]
    bars = [[at - low for at, low in zip(speeds, slowest, strict=True)]]
    bars += [[high - at for at, high in zip(speeds, fastest, strict=True)]]
    axes.errorbar([probe.rows for probe in timed], speeds, yerr=bars, fmt="o", ms=4, capsize=4, color="tab:blue")
    axes.set_ylim(0, 1.12 * max(fastest))
    if tuning.fast_enough is None:
        axes.text(0.02, 0.96, "too noisy to say which size is fast enough", transform=axes.transAxes, va="top")
    else:
        label = f"{percent(tuning.target)} of the best"
        axes.axhline(tuning.target * max(speeds), color="tab:green", linewidth=0.8, linestyle=":", label=label)
    for name, size in marks(tuning).items():
        colour, shape, area = MARKS[name]
        speed = next((probe.rows_per_s for probe in timed if probe.rows == size), 0.0)
        edge = {"facecolors": "none", "edgecolors": colour, "linewidths": 1.8} if shape == "o" else {"c": colour}
        axes.scatter(size, speed, s=area, marker=shape, label=f"{name}: {size:,} rows", zorder=3, **edge)
    axes.legend(loc="lower right", framealpha=0.9, fontsize=8)


def _memory(axes: Axes, probes: Sequence[Probe], tuning: Tuning) -> None:
    """The peak of each size, crosses for those that do not fit, and what there is."""
    taken = max([probe.peak_bytes or 0 for probe in probes])
    far = tuning.available_bytes > FAR * taken > 0
    most = taken if far else max(taken, tuning.available_bytes, 1)
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    fits = [probe for probe in probes if probe.fits and probe.peak_bytes is not None]
    peaks = [(probe.peak_bytes or 0) / unit for probe in fits]
    if fits:
        axes.plot(*between(fits, peaks), **LINE)
        axes.plot([probe.rows for probe in fits], peaks, "o", ms=4, color="tab:blue")
    failed = [probe for probe in probes if not probe.fits]
    heights = [(probe.peak_bytes or tuning.available_bytes) / unit for probe in failed]
    axes.plot([probe.rows for probe in failed], heights, "x", color="tab:red", ms=8, mew=2)
    axes.set_ylim(0, 1.18 * most / unit)
    words = f"available: {in_bytes(tuning.available_bytes)}{', far above' if far else ''}"
    height = axes.get_ylim()[1] * 0.97 if far else tuning.available_bytes / unit
    axes.axhline(tuning.available_bytes / unit, color="dimgray", linewidth=0.8, linestyle="--")
    text = axes.text(0.01, height, words, va="top" if far else "bottom", transform=axes.get_yaxis_transform())
    text.set(fontsize=8, color="dimgray")
    axes.set_ylabel(f"memory at its peak, {name}")
    axes.set_xlabel("rows of a micro-batch (x: does not fit)" if failed else "rows of a micro-batch")


def marks(tuning: Tuning) -> dict[str, int]:
    """The sizes that have a name."""
    sizes = {"largest that fits": tuning.fits, "fast enough": tuning.fast_enough, "recommended": tuning.recommended}
    return {name: rows for name, rows in sizes.items() if rows is not None}


def _lines(axes: Axes, tuning: Tuning) -> None:
    for place, (name, rows) in enumerate(marks(tuning).items()):
        axes.axvline(rows, color=MARKS[name][0], linewidth=0.9, linestyle=(4 * place, (4, 8)), zorder=0)


def _sizes(axes: Axes, sizes: list[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415 - as above

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(sizes) / 1.15, max(sizes) * 1.15)
