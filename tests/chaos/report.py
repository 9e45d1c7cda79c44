"""What came of a disturbed run, beside one that was left alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from launcher.observe.meter import MEASURED
from tests.chaos.disturb import Hit
from tests.chaos.ledger import Line, whole_steps
from tests.chaos.schedule import KINDS

Rows = tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """A run that is over.

    Attributes:
        run_dir: its folder.
        lines: of the ledger.
        worlds: ranks of each start.
        seconds: from the first command to the end of the last.
    """

    run_dir: Path
    lines: list[Line]
    worlds: list[int]
    seconds: float

    @property
    def digest(self) -> Any:
        """Of the weights; None where it did not finish."""
        return json.loads((self.run_dir / "status.json").read_text(encoding="utf-8"))["weights_sha256"]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was logged but for speed."""
        lines = (self.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        speed = ("train/rows_per_s", *MEASURED)
        return [{name: v for name, v in json.loads(line).items() if not name.startswith(speed)} for line in lines]

    @property
    def rows(self) -> dict[int, list[Rows]]:
        """Of each step, as often as it was taken."""
        return whole_steps(self.lines, self.worlds)


def disagreements(found: Outcome, alone: Outcome, steps: int, epoch_rows: int) -> list[str]:
    """In what the disturbed run differs from the one that was left alone, and where a row is not once in an epoch."""
    problems = []
    if found.digest is None or found.digest != alone.digest:
        problems.append(f"the weights differ: {found.digest}, undisturbed {alone.digest}")
    if found.metrics != alone.metrics:
        first = next((pair for pair in zip(found.metrics, alone.metrics, strict=False) if pair[0] != pair[1]), None)
        problems.append(f"the metrics differ: {len(found.metrics)} and {len(alone.metrics)} lines, first {first}")
    rows, expected = found.rows, alone.rows
    for step in range(1, steps + 1):
        if not rows.get(step):
            problems.append(f"step {step} was never taken by all ranks")
        elif set(rows[step]) != set(expected[step]):
            problems.append(f"step {step} was taken with other rows")
    return problems + _not_once(rows, steps, epoch_rows)


def _not_once(rows: dict[int, list[Rows]], steps: int, epoch_rows: int) -> list[str]:
    """The epochs in which a row is twice, or missing from a whole one."""
    problems, seen, epoch = [], [], 0
    for step in range(1, steps + 1):
        seen += rows[step][0] if rows.get(step) else ()
        if len(seen) >= epoch_rows or step == steps:
            if len(set(seen)) != len(seen) or len(seen) > epoch_rows:
                problems.append(f"epoch {epoch + 1} has {len(seen)} rows, {len(set(seen))} of them different")
            seen, epoch = [], epoch + 1
    return problems


def table(hits: list[Hit]) -> str:
    """A line for each kind of fault, and one for all."""
    head = f"{'fault':<16}{'came':>5}{'ended ranks':>13}{'steps lost: mean':>18}{'max':>5}"
    head += f"{'s to next step: mean':>22}{'max':>7}"
    groups = {kind: [hit for hit in hits if hit.fault.kind == kind] for kind in KINDS}
    lines = [_line(kind, group) for kind, group in groups.items() if group]
    return "\n".join([head, *lines, _line("all", hits)])


def _line(name: str, hits: list[Hit]) -> str:
    lost, times = [hit.lost for hit in hits], [hit.next_s for hit in hits if hit.next_s is not None]
    ended = sum(hit.ended for hit in hits)
    return (
        f"{name:<16}{len(hits):>5}{ended:>13}{_mean(lost):>18}{max(lost, default=0):>5}"
        f"{_mean(times):>22}{f'{max(times):.1f}' if times else '-':>7}"
    )


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{mean(found):.1f}" if found else "-"
