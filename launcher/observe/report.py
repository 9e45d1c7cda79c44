"""``report.html``: what a run was and where its time went, in one page that needs nothing beside it."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path

from launcher.files import replace_file
from launcher.observe.charts import COLOURS, bar, chart
from launcher.observe.clock import PARTS
from launcher.observe.findings import findings
from launcher.observe.story import Story
from samplers.words import counted

log = logging.getLogger(__name__)
NAME = "report.html"
COLOUR_OF = dict(zip(PARTS, (*COLOURS[:7], COLOURS[-1]), strict=True))
MEANING = {
    "data": "waiting for rows",
    "to_device": "moving rows to the device",
    "forward_backward": "losses and gradients, with the communication that goes on meanwhile",
    "optimizer": "the step of the optimizer, and clipping",
    "communication": "waiting for other ranks",
    "evaluation": "evaluating",
    "checkpoint": "waiting for checkpoints",
    "other": "the rest",
}
PANELS: Mapping[str, Sequence[str]] = {
    "Loss": ("train/loss", "test/loss"),
    "Rows per second": ("train/rows_per_s",),
    "Learning rate": ("train/lr",),
    "Time waiting, as a share": ("time/data", "time/communication", "time/evaluation", "time/checkpoint"),
    "Utilisation, as a share": (
        "cpu/use",
        "gpu/sm",
        "gpu/tensor",
        "gpu/memory",
        "gpu/kernel_busy",
        "speed/flop_utilisation",
    ),
    "Memory of a rank at most, bytes": ("memory/now_bytes", "memory/reserved_bytes", "memory/peak_bytes"),
}
REACHES: Mapping[str, Sequence[float]] = {
    "Rows per second": (0.0,),
    "Time waiting, as a share": (0.0,),
    "Utilisation, as a share": (0.0, 1.0),
    "Memory of a rank at most, bytes": (0.0,),
}
"""Values that the axes of panels have in any case."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2126; background: #fff; max-width: 960px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.state { display: inline-block; padding: 0 .6rem; border-radius: 1rem; background: #e3efe5; font-weight: 600; }
.failed { background: #f9dcd8; } .preempted, .running { background: #f6ecd0; }
.facts, .legend { color: #59636e; } ul.findings { padding-left: 1.2rem; } ul.findings li { margin: .3rem 0; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg.bar { width: 100%; height: 44px; border-radius: 6px; } svg text { font: 12px system-ui, sans-serif; fill: #59636e; }
svg text.inside { fill: #fff; font-size: 17px; font-weight: 600; } svg .grid { stroke: #e4e8ec; }
i { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .4em; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(400px, 1fr)); gap: 1rem 2rem; }
.panels h3 { font-size: .95rem; margin: 0; } .legend { margin: 0; font-size: .85rem; }
.legend span { margin-right: 1rem; white-space: nowrap; } svg.chart { width: 100%; } img { max-width: 100%; }
pre { background: #f5f7f9; padding: .7rem; overflow-x: auto; font-size: 12px; line-height: 1.45; border-radius: 6px; }
summary { cursor: pointer; }
"""


def write_report(run_dir: Path, rest: Mapping[str, float] | None = None) -> Path | None:
    """Write ``report.html`` of a run folder; what goes wrong is said, and nothing else comes of it.

    Args:
        run_dir: the run folder.
        rest: what was measured after the last line of metrics.

    Returns:
        The page; None: it could not be written.
    """
    try:
        replace_file(run_dir / NAME, page(Story.read(run_dir, rest)))
    except Exception as error:  # noqa: BLE001 - a picture of what is kept elsewhere
        log.warning("%s is not written: %s: %s", run_dir / NAME, type(error).__name__, error)
        return None
    return run_dir / NAME


def page(story: Story) -> str:
    """The page as HTML."""
    title = escape(story.run_dir.name)
    parts = [
        _head(story),
        _section(
            "Findings", f"<ul class='findings'>{''.join(f'<li>{escape(said)}</li>' for said in findings(story))}</ul>"
        ),
        _section("Where the time went", _time(story)),
        _section("Batch plan", f"<pre>{escape(story.plan)}</pre>" if story.plan else ""),
        _section("Curves", f"<div class='panels'>{''.join(_panels(story))}</div>" if story.lines else ""),
        _section("Micro-batch that fits and pays", _picture(story.picture)),
        _section("Top operators", "".join(_tables(story.tables))),
        _section("Settings", _settings(story)),
    ]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _head(story: Story) -> str:
    status = story.status
    facts = [
        counted(status.step, "step", ","),
        f"epoch {status.epoch + 1}",
        counted(status.rows, "row", ","),
        counted(status.world_size, "rank"),
        *([counted(status.restarts, "restart")] if status.restarts else []),
        *(f"{name} {value:.4f}" for name, value in status.metrics.items() if _is_result(name, value)),
    ]
    state = escape(status.state)
    said = " &middot; ".join(map(escape, facts))
    return (
        f"<h1>{escape(str(story.run_dir))}</h1><p><span class='state {state}'>{state}</span> "
        f"<span class='facts'>{said}</span></p>"
    )


def _is_result(name: str, value: object) -> bool:
    return name.startswith("test/") and name != "test/rows" and isinstance(value, int | float)


def _time(story: Story) -> str:
    seconds, shares = story.seconds(), story.shares()
    if not shares:
        return ""
    rows = [
        f"<tr><td><i style='background:{COLOUR_OF[part]}'></i>{part}</td><td class='number'>{shares[part]:.1%}</td>"
        f"<td class='number'>{_duration(seconds[part])}</td><td class='facts'>{MEANING[part]}</td></tr>"
        for part in PARTS
    ]
    whose = ", the mean of all ranks" if story.status.world_size > 1 else ""
    recorded = "; recording windows is a part of the rest" if story.tables else ""
    total = f"<p class='facts'>of {_duration(sum(seconds.values()))} that were measured{whose}{recorded}</p>"
    return f"{bar(shares, COLOUR_OF)}{total}<table>{''.join(rows)}</table>"


def _duration(seconds: float) -> str:
    """So many seconds in words.

    >>> _duration(0.01234), _duration(1.5), _duration(75.2), _duration(90061)
    ('12 ms', '1.50 s', '01:15', '1 day, 1:01:01')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.2f} s"
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")


def _panels(story: Story) -> Iterator[str]:
    """Those that have anything to show; metrics of the user's own each have one."""
    known = {name for names in PANELS.values() for name in names} | {"test/rows"}
    own = [name for name in story.names if name.startswith(("test/", "train/")) and name not in known]
    for title, names in (*PANELS.items(), *((name, (name,)) for name in own)):
        curves = {name: story.curve(name) for name in names}
        told = {name: curve for name, curve in curves.items() if len(names) == 1 or any(y for _, y in curve)}
        drawn = chart(told, REACHES.get(title, ()))
        if drawn:
            yield f"<div><h3>{escape(title)}</h3>{drawn}</div>"


def _picture(content: bytes | None) -> str:
    if content is None:
        return ""
    return (
        f"<img alt='throughput and memory against the size' src='data:image/png;base64,{b64encode(content).decode()}'>"
    )


def _tables(tables: Mapping[str, str]) -> Iterator[str]:
    for name, table in tables.items():
        yield f"<details><summary>{escape(name.replace('_', ' '))}</summary><pre>{escape(table)}</pre></details>"


def _settings(story: Story) -> str:
    if not story.settings:
        return ""
    import yaml  # noqa: PLC0415 - ranks that write no report do without

    text = yaml.safe_dump(dict(story.settings), sort_keys=False, allow_unicode=True)
    return f"<details><summary>config.yaml</summary><pre>{escape(text)}</pre></details>"
