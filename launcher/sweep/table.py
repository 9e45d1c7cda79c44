"""The table of a sweep's jobs, in the room that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from launcher.sweep.curve import key_of_metric
from launcher.sweep.jobs import FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, STOPPED, WAITING, Record
from launcher.sweep.parameters import parameters
from launcher.sweep.words import cut, duration, number, ranges, short, shown, unquoted

STYLES = {
    WAITING: "dim",
    RUNNING: "cyan",
    FINISHED: "green",
    STOPPED: "green",
    PRUNED: "yellow",
    PREEMPTED: "yellow",
    FAILED: "bold red",
}
WIDTHS = (32, 20, 12, 8)
"""How wide a parameter may be, where there is room and where there is less."""
NUMBER = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?", re.IGNORECASE)
GAP = 2
STATE = "state"


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        title: its head.
        cells: one for each job.
        leaves: where the table is too wide, the columns of the highest numbers are left out first; 0: it stays.
        right: whether it is flushed right.
        parameter: whether it may be cut.
    """

    title: str
    cells: tuple[str, ...]
    leaves: int = 0
    right: bool = True
    parameter: bool = False

    @cached_property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return max(cell_len(text) for text in (self.title, *self.cells))

    def padded(self, text: str) -> str:
        """A cell, or the head, as wide as the column."""
        return " " * (self.width - cell_len(text)) + text if self.right else set_cell_size(text, self.width)

    def at_most(self, width: int) -> Column:
        """No wider than ``width``, if it may be cut."""
        if not self.parameter or self.width <= width:
            return self
        return replace(self, title=cut(self.title, width), cells=tuple(cut(text, width) for text in self.cells))


def table(records: Sequence[Record], keys: Sequence[str], metric: str | None, width: int) -> list[Text]:
    """A head and a row for each job; where it is too wide, parameters are cut, and what matters least is left out.

    Args:
        records: the jobs, in the order of the rows.
        keys: the parameters that are shown.
        metric: as ``sweep.metric`` names it.
        width: columns of the terminal.
    """
    for columns in _layouts(_columns(records, keys, metric)):
        if sum(column.width + GAP for column in columns) - GAP <= width:
            break
    rows = [_line([column.padded(column.title) for column in columns], ["bold"] * len(columns))]
    for place, record in enumerate(records):
        dim = STYLES[WAITING] if record.state == WAITING else ""
        styles = [STYLES[record.state] if column.title == STATE else dim for column in columns]
        rows.append(_line([column.padded(column.cells[place]) for column in columns], styles))
    return rows


def _line(cells: Sequence[str], styles: Sequence[str]) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for cell, style in zip(cells, styles, strict=True):
        line.append(cell, style).append(" " * GAP)
    line.rstrip()
    return line


def metric_names(records: Sequence[Record], metric: str | None) -> list[str]:
    """The metrics that are worth a column, that of the sweep first: those of evaluations, and ``train/loss``."""
    first = [key_of_metric(metric)] if metric else []
    found = dict.fromkeys([*first, *(name for record in records for name in record.metrics)])
    tests = [name for name in found if name.startswith("test/") and name != "test/rows"]
    return [*tests, *(["train/loss"] if "train/loss" in found else [])]


def _columns(records: Sequence[Record], keys: Sequence[str], metric: str | None) -> list[Column]:
    titles, own, names = short(keys), [parameters(record) for record in records], metric_names(records, metric)
    first, last = len(keys) + 1, len(keys) + 1 + len(names)
    always = key_of_metric(metric) if metric else None
    return [
        Column("job", tuple(str(record.number) for record in records)),
        *(_of_parameter(titles[key], [job.get(key, "") for job in own], place) for place, key in enumerate(keys, 1)),
        Column(STATE, tuple(record.state for record in records), right=False),
        Column("step", tuple(str(record.step or "") for record in records), last),
        *(
            Column(name, tuple(_metric(record, name) for record in records), 0 if name == always else place)
            for place, name in enumerate(names, first)
        ),
        Column("time", tuple(duration(record.seconds) if record.seconds else "" for record in records), last + 1),
        Column("devices", tuple(ranges(record.devices) for record in records), last + 2, right=False),
    ]


def _metric(record: Record, name: str) -> str:
    return number(record.metrics[name]) if name in record.metrics else ""


def _of_parameter(title: str, texts: Sequence[str], leaves: int) -> Column:
    numbers = all(not text or NUMBER.fullmatch(text) for text in texts)
    cells = tuple(shown(unquoted(text)) for text in texts)
    return Column(shown(title), cells, leaves, right=numbers, parameter=True)


def _layouts(columns: Sequence[Column]) -> Iterator[list[Column]]:
    """Narrower and narrower ones."""
    for leaves in range(max(column.leaves for column in columns), -1, -1):
        for width in WIDTHS:
            yield [column.at_most(width) for column in columns if column.leaves <= leaves]
