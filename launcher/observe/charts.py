"""Pictures for a page that needs nothing beside it: SVG, made of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
WIDTH, HEIGHT = 440, 210
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 26
MOST_POINTS = 400


def bar(shares: Mapping[str, float], colours: Mapping[str, str]) -> str:
    """Shares that add up to 1 side by side, each with its number where there is room for it."""
    pieces, x = [], 0.0
    for name, share in shares.items():
        width = 1000 * share
        pieces.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="44" fill="{colours[name]}">'
            f"<title>{escape(name)} {share:.1%}</title></rect>"
        )
        if share >= 0.05:  # noqa: PLR2004 - as much as a number of two digits takes
            text = f'<text x="{x + width / 2:.1f}" y="27" text-anchor="middle" class="inside">{share:.0%}</text>'
            pieces.append(text)
        x += width
    return f'<svg viewBox="0 0 1000 44" class="bar" role="img">{"".join(pieces)}</svg>'


def chart(series: Mapping[str, Sequence[Point]], reaches: Sequence[float] = ()) -> str:
    """Lines of (step, value) by name; values that are not finite are left out.

    Args:
        series: the lines.
        reaches: values that the axis upwards has in any case.
    """
    lines = {name: thinned([p for p in points if math.isfinite(p[1])]) for name, points in series.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    every = [point for points in lines.values() for point in points]
    across = _span([x for x, _ in every])
    up = _span([*(y for _, y in every), *reaches])
    drawn = [_line(points, across, up, COLOURS[number % len(COLOURS)]) for number, points in enumerate(lines.values())]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" class="chart" role="img">{_axes(across, up)}{"".join(drawn)}</svg>'
        f"<p class='legend'>{_legend(list(lines))}</p>"
    )


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points, evenly taken, the last one among them.

    >>> thinned([(step, 0.0) for step in range(7)], most=3)
    [(0, 0.0), (3, 0.0), (6, 0.0)]
    """
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def marks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers between ``low`` and ``high``.

    >>> marks(0, 10), marks(0.13, 0.31)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.15, 0.2, 0.25, 0.3])
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.8)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def short(value: float) -> str:
    """A number of an axis.

    >>> [short(value) for value in (0.0, 0.05, 1500.0, 3.2e9)]
    ['0', '0.05', '1.5k', '3.2G']
    """
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    return f"{value:.4g}"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _place(value: float, span: tuple[float, float], start: float, stop: float) -> float:
    return start + (value - span[0]) / (span[1] - span[0]) * (stop - start)


def _axes(across: tuple[float, float], up: tuple[float, float]) -> str:
    pieces = []
    for value in marks(*up):
        y = _place(value, up, HEIGHT - BOTTOM, TOP)
        pieces.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        pieces.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value in marks(*across):
        if value == int(value):
            x = _place(value, across, LEFT, WIDTH - RIGHT)
            pieces.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{short(value)}</text>')
    return "".join(pieces)


def _line(points: Sequence[Point], across: tuple[float, float], up: tuple[float, float], colour: str) -> str:
    places = [(_place(x, across, LEFT, WIDTH - RIGHT), _place(y, up, HEIGHT - BOTTOM, TOP)) for x, y in points]
    if len(places) == 1:
        (x, y) = places[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def _legend(names: Sequence[str]) -> str:
    items = [
        f"<span><i style='background:{COLOURS[number % len(COLOURS)]}'></i>{escape(name)}</span>"
        for number, name in enumerate(names)
    ]
    return "".join(items)
