"""Charts as SVG, which a page holds without a script: lines over a number, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 12, 40
WIDE, HIGH = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
BAR = 22
# A line of more points has no dots, which would hide it.
MOST_DOTS = 60
COLOURS = ("#2f6fb0", "#d1702b", "#3b8f5a", "#a64f86", "#7a6a2f", "#5b5bb5", "#b03a3a", "#4a8f8f")
Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], x: str, y: str, limit: float | None = None, log: bool = False) -> str:
    """Lines by name, as SVG, empty if there is no point; `limit` is drawn as a dashed line across."""
    drawn = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    points = [point for each in drawn.values() for point in each]
    if not points:
        return ""
    scale = _Scale.of(points, limit, log)
    parts = [*_axes(scale, x, y), *([] if limit is None else [_across("limit", scale.at((scale.left, limit))[1])])]
    for number, (name, each) in enumerate(drawn.items()):
        parts += _line(scale, name, each, number)
    return _svg(HEIGHT, parts)


@dataclass(frozen=True)
class _Scale:
    """What the axes range over."""

    left: float
    right: float
    least: float
    most: float
    log: bool

    @classmethod
    def of(cls, points: Points, limit: float | None, log: bool) -> _Scale:
        heights = [*(height for _, height in points), *([] if limit is None else [limit])]
        most = _rounded(max(heights))
        least = 10.0 ** math.floor(math.log10(max(min(heights), most / 1e6))) if log else 0.0
        return cls(min(p[0] for p in points), max(p[0] for p in points), least, most, log)

    def level(self, share: float) -> float:
        """The value at a share of the height."""
        return self.least * (self.most / self.least) ** share if self.log else self.most * share

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point is drawn."""
        x, y = point
        across = (x - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        up = math.log(max(y, self.least) / self.least, self.most / self.least) if self.log else y / self.most
        return LEFT + across * WIDE, TOP + (1 - up) * HIGH


def _axes(scale: _Scale, x: str, y: str) -> list[str]:
    parts = []
    for step in range(5):
        level = scale.level(step / 4)
        height = scale.at((scale.left, level))[1]
        parts += [_across("grid", height), _text(LEFT - 6, height + 4, f"{level:,.3g}", "end")]
    for value, anchor in ((scale.left, "start"), (scale.right, "end")):
        parts.append(_text(scale.at((value, scale.most))[0], HEIGHT - 22, f"{value:,.4g}", anchor))
    parts.append(_text(LEFT + WIDE / 2, HEIGHT - 6, x, "middle"))
    place = f'transform="translate(14 {TOP + HIGH / 2}) rotate(-90)"'
    return [*parts, f'<text {place} text-anchor="middle">{escape(y)}</text>']


def _line(scale: _Scale, name: str, points: Points, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join("{:.1f},{:.1f}".format(*scale.at(point)) for point in points)
    parts = [f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>']
    for point in points if len(points) < MOST_DOTS else ():
        label = escape(f"{name}: {point[1]:,.4g} at {point[0]:,.4g}")
        x, y = scale.at(point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{label}</title></circle>')
    height = TOP + 12 + 18 * number
    parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{height - 9}" width="10" height="10" fill="{colour}"/>')
    return [*parts, _text(WIDTH - RIGHT + 28, height, name, "start")]


def _across(kind: str, height: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}" x2="{LEFT + WIDE}" y1="{height:.1f}" y2="{height:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def bars(values: Mapping[str, float], unit: str) -> str:
    """A bar for each value, with its name and its number. Empty if there is none."""
    shown = {name: value for name, value in values.items() if math.isfinite(value)}
    if not shown:
        return ""
    most, wide = max(*shown.values(), 1e-12), WIDTH - 300 - 110
    parts = []
    for number, (name, value) in enumerate(shown.items()):
        y = number * BAR
        parts.append(_text(292, y + 15, name, "end"))
        width = max(0.5, value / most * wide)
        parts.append(f'<rect x="300" y="{y + 3}" width="{width:.1f}" height="{BAR - 7}" fill="{COLOURS[0]}"/>')
        parts.append(_text(306 + width, y + 15, f"{value:,.4g} {unit}", "start"))
    return _svg(len(shown) * BAR + 6, parts)


def _rounded(value: float) -> float:
    """The next number above with one digit."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / unit) * unit


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
