"""A picture of a sweep: its metric against each parameter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.sweep.jobs import DONE, FAILED, PRUNED, Record
from launcher.sweep.parameters import is_number, parameters, value_of, varying
from launcher.sweep.results import best, value_words
from launcher.sweep.words import cut, shown, unquoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DECADES = 2
"""Values that span more, and are all above zero, stand on a logarithmic axis."""
FEW = 8
"""Values up to which each has a mark of its own on the axis, unless two are too close to each other."""
CLOSE = 0.08
ACROSS = 4
"""Panels in a row at most."""
PANEL_INCHES = (3.2, 2.9)
LETTERS = 18
"""Of a name that are shown on an axis."""
LINE = 34
"""Letters of all names that have room beside each other."""
SETTINGS: Any = {
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": 9.0,
    "axes.xmargin": 0.09,
    "axes.ymargin": 0.12,
}


def picture(records: Sequence[Record], metric: str, path: Path) -> str | None:
    """Draw ``sweep.metric`` against each parameter that varies, a panel for each, into a PNG file.

    Jobs that were pruned are grey, those that failed or have no value are crosses at the bottom, the best is a star.

    Args:
        records: the jobs.
        metric: ``accuracy`` where the highest value is best, ``-loss`` where the lowest is.
        path: the file, which is replaced.

    Returns:
        What it lacks to be drawn, with the remedy, in one line; None: it is drawn.
    """
    if find_spec("matplotlib") is None:
        return f"{path.name} is not drawn: matplotlib is not installed: pip install 'evenshard[demo]'"
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    over = [record for record in records if record.state in (*DONE, FAILED)]
    file = BytesIO()
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure_of(over, metric).savefig(file, format="png")
    path.write_bytes(file.getvalue())
    return None


@dataclass(frozen=True)
class Axis:
    """Where the jobs stand along a parameter.

    Attributes:
        places: of each job.
        marks: on the axis, with their names; none: as the axis likes.
        logarithmic: whether it is.
    """

    places: tuple[float, ...]
    marks: dict[float, str]
    logarithmic: bool = False

    @classmethod
    def of(cls, texts: Sequence[str]) -> Axis:
        """Numbers stand at their value, anything else side by side.

        >>> Axis.of(["sgd", "adamw", "sgd"])
        Axis(places=(0.0, 1.0, 0.0), marks={0.0: 'sgd', 1.0: 'adamw'}, logarithmic=False)
        >>> Axis.of(["1", "2", "3"])
        Axis(places=(1.0, 2.0, 3.0), marks={1.0: '1', 2.0: '2', 3.0: '3'}, logarithmic=False)
        >>> Axis.of(["1", "0.01", "0.1"]).logarithmic
        True
        """
        values = [value_of(text) for text in texts]
        if not all(map(is_number, values)):
            order = {text: float(place) for place, text in enumerate(dict.fromkeys(texts))}
            return cls(tuple(order[text] for text in texts), {place: text for text, place in order.items()})
        places = tuple(float(value) for value in values)
        different = sorted(set(places))
        logarithmic = spans_decades(places) or (len(different) <= FEW and is_geometric(different))
        gap = smallest_gap([math.log(value) for value in different] if logarithmic else different)
        marks = {place: f"{place:g}" for place in different} if len(different) <= FEW and gap >= CLOSE else {}
        return cls(places, marks, logarithmic)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether the largest is more than a hundred times the smallest.

    >>> [spans_decades(values) for values in ([0.001, 1.0], [0.01, 1.0], [0.0, 1000.0], [])]
    [True, False, False, False]
    """
    return bool(values) and min(values) > 0 and max(values) / min(values) > 10**DECADES


def is_geometric(values: Sequence[float]) -> bool:
    """Whether sorted values lie well apart on a logarithmic axis, and further than on another.

    >>> [is_geometric(values) for values in ([16, 32, 64], [16, 32, 48], [0, 1], [7], [1, 1.001, 2])]
    [True, False, False, False, False]
    """
    if min(values, default=0.0) <= 0:
        return False
    gap = smallest_gap([math.log(value) for value in values])
    return gap >= CLOSE and gap > smallest_gap(values) + 1e-9


def smallest_gap(values: Sequence[float]) -> float:
    """The smallest distance of neighbours as a part of all that sorted values span; 1 for one value.

    >>> [smallest_gap(values) for values in ([1], [1, 5], [0, 1, 4])]
    [1.0, 1.0, 0.25]
    """
    return min(((right - left) / (values[-1] - values[0]) for left, right in pairwise(values)), default=1.0)


def figure_of(records: Sequence[Record], metric: str) -> Figure:
    """The picture of jobs that are over; without parameters that vary, of the metric along the jobs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    keys = varying(records) or [""]
    down = math.ceil(len(keys) / ACROSS)
    across = math.ceil(len(keys) / down)
    figure = Figure((max(PANEL_INCHES[0] * across, 4.5), PANEL_INCHES[1] * down + 0.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    found, first = best(records, metric), None
    figure.suptitle(_title(records, found, metric))
    for place, key in enumerate(keys):
        axes = first = figure.add_subplot(down, across, place + 1, sharey=first)
        _panel(axes, records, key, found)
        axes.set_xlabel(shown(cut(key, 2 * LETTERS)) or "job")
        axes.tick_params(labelleft=place % across == 0)
        if place % across == 0:
            axes.set_ylabel(metric.lstrip("-"))
    return figure


def _title(records: Sequence[Record], found: Record | None, metric: str) -> str:
    crosses = sum(not _has_value(record) for record in records)
    words = f"job {found.number} is best of {len(records)}: {value_words(found, metric)}" if found else "no job is best"
    return f"{words}; {crosses} without a value (x)" if crosses else words


def _panel(axes: Axes, records: Sequence[Record], key: str, found: Record | None) -> None:
    texts = [parameters(record).get(key, "none") if key else str(record.number) for record in records]
    axis = Axis.of(texts)
    where = dict(zip((record.number for record in records), axis.places, strict=True))
    for colour, those in (("tab:gray", _pruned(records)), ("tab:blue", _ended(records))):
        xs, ys = [where[record.number] for record in those], [record.value or 0.0 for record in those]
        axes.scatter(xs, ys, s=28, alpha=0.65, linewidths=0, c=colour)
    crosses = [where[record.number] for record in records if not _has_value(record)]
    bottom = axes.get_xaxis_transform()
    axes.scatter(crosses, [0.04] * len(crosses), s=28, c="tab:red", marker="x", transform=bottom)
    if found is not None:
        x, y = [where[found.number]], [found.value or 0.0]
        axes.scatter(x, y, s=140, c="tab:orange", marker="*", edgecolors="black", linewidths=0.6)
    _mark(axes, axis)
    if spans_decades([record.value or 0 for record in records if _has_value(record)]):
        axes.set_yscale("log")


def _mark(axes: Axes, axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: PLC0415 - as above

    if axis.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if axis.marks:
        names = [cut(shown(unquoted(name)), LETTERS) for name in axis.marks.values()]
        axes.set_xticks(list(axis.marks), names)
        axes.minorticks_off()
        if sum(len(name) + 2 for name in names) > LINE:
            axes.tick_params(axis="x", labelrotation=25)


def _ended(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if _has_value(record) and record.state != PRUNED]


def _pruned(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if _has_value(record) and record.state == PRUNED]


def _has_value(record: Record) -> bool:
    return record.state != FAILED and record.value is not None and math.isfinite(record.value)
