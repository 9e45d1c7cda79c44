"""What a run folder tells of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.observe.clock import PARTS
from launcher.observe.observer import METRICS
from launcher.observe.profile import FOLDER as TRACE
from launcher.observe.status import Status, read_status

PLAN = "plan.txt"
CONFIG = "config.yaml"
TUNED = "tune.png"
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Story:
    """What a run folder tells.

    Attributes:
        run_dir: the run folder.
        status: as status.json has it.
        settings: as config.yaml has them; empty where it cannot be read.
        lines: of metrics.jsonl.
        rest: what was measured after the last of them.
        plan: the batch plan, in words; empty where training did not begin.
        tables: of operators, by the name of their window.
        picture: of mode=tune, a PNG; None: there is none.
    """

    run_dir: Path
    status: Status = field(default_factory=Status)
    settings: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    rest: Mapping[str, float] = field(default_factory=dict)
    plan: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    picture: bytes | None = None

    @classmethod
    def read(cls, run_dir: Path, rest: Mapping[str, float] | None = None) -> Story:
        """What stands in a run folder; what is missing or cannot be read is left out."""
        content = _bytes(run_dir / METRICS) or b""
        return cls(
            run_dir=run_dir,
            status=read_status(run_dir),
            settings=_settings(run_dir / CONFIG),
            lines=[line for line in map(_line, content.splitlines()) if line],
            rest=rest or {},
            plan=_text(run_dir / PLAN),
            tables={path.stem: _text(path) for path in sorted((run_dir / TRACE).glob("*.txt"))},
            picture=_bytes(run_dir / TUNED),
        )

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting by its dotted name."""
        value: Any = self.settings
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return default if value is None else value

    @property
    def names(self) -> list[str]:
        """Of all metrics, in the order in which they came."""
        return list(dict.fromkeys(name for line in self.lines for name in line))

    @property
    def intervals(self) -> Sequence[Line]:
        """What was measured, an interval at a time."""
        return [line for line in (*self.lines, self.rest) if is_number(line.get("time/interval_s"))]

    def seconds(self) -> dict[str, float]:
        """Of each part, over all intervals; empty where nothing was measured."""
        found = dict.fromkeys(PARTS, 0.0)
        for line in self.intervals:
            for part in PARTS:
                found[part] += float(line.get(f"time/{part}") or 0.0) * line["time/interval_s"]
        return found if sum(found.values()) > 0 else {}

    def shares(self) -> dict[str, float]:
        """Of each part in all the time that was measured, which add up to 1."""
        seconds = self.seconds()
        total = sum(seconds.values())
        return {part: value / total for part, value in seconds.items()}

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of a metric, where it is a number."""
        return [
            (line["step"], float(line[name])) for line in self.lines if is_number(line.get(name)) and "step" in line
        ]

    def mean(self, name: str) -> float | None:
        """Of what was measured, each interval by its length; None where it is not known."""
        known = [line for line in self.intervals if is_number(line.get(name))]
        total = sum(line["time/interval_s"] for line in known)
        return sum(line[name] * line["time/interval_s"] for line in known) / total if total > 0 else None

    def last(self, name: str) -> float | None:
        """The last value of a metric; None where it is not known."""
        curve = self.curve(name)
        return curve[-1][1] if curve else None


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str:
    return (_bytes(path) or b"").decode("utf-8", "replace")


def _settings(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 - ranks that write no report do without

    try:
        found = yaml.safe_load(_text(path))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _line(content: bytes) -> dict[str, Any]:
    """A line of metrics; empty where it is not whole."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and is_number(found.get("step")) else {}
