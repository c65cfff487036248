"""Charts of bars and diagrams of boxes as SVG, light or dark as the reader's system is, drawn with Matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

WIDTH, ROW, HEAD, FOOT = 9.6, 0.27, 0.75, 0.45
BOX_WIDTH, BOX_HEIGHT, COLUMN, LINE = 1.3, 0.45, 1.68, 0.76
# The colours on a light page and on a dark one; ours is the only colour.
INK, NOTE, BAR, OURS, PAPER = "#1f2328", "#59636e", "#afb8c1", "#0969da", "#f6f8fa"
DARK = {INK: "#e6edf3", NOTE: "#9198a1", BAR: "#656c76", OURS: "#4493f8", PAPER: "#151b23"}
# Text stays text, and the same picture gives the same file.
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ensemble",
    "font.family": "DejaVu Sans",
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        label: what it stands for.
        value: its length, in the chart's unit.
        text: the value for people.
        ours: whether it is this application's.
        interval: its 95 % interval.
    """

    label: str
    value: float
    text: str
    ours: bool = False
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Chart:
    """A chart of horizontal bars on an axis that begins at 0.

    The best bar of a group is first, but bars whose labels are numbers stay in the order of that quantity.

    Attributes:
        title: what is compared, with the unit.
        note: the machine, the size of images and the date.
        groups: bars under a heading, which may be empty.
        ascending: whether less is better.
    """

    title: str
    note: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    ascending: bool = False

    def svg(self) -> str:
        """Draw the picture as a file."""
        return _svg(self.figure(), f"{self.title}. {self.note}")

    def figure(self) -> Figure:
        """Draw the picture."""
        lines = [line for heading, bars in self.groups for line in ([heading] if heading else []) + self._ordered(bars)]
        figure, axes = _figure(WIDTH, HEAD + FOOT + ROW * len(lines), self.title, self.note)
        most = max(bar.interval[1] if bar.interval else bar.value for bar in lines if isinstance(bar, Bar))
        for row, line in enumerate(lines):
            if isinstance(line, Bar):
                _draw_bar(axes, row, line, most)
        labels = [line.label if isinstance(line, Bar) else line for line in lines]
        axes.set_yticks(range(len(lines)), labels)
        for text, line in zip(axes.get_yticklabels(), lines, strict=True):
            is_heading = not isinstance(line, Bar)
            text.set(color=NOTE if is_heading else INK, weight="bold" if is_heading or line.ours else "normal")
        axes.set(xlim=(0, most), ylim=(len(lines) - 0.4, -0.6))
        axes.tick_params(length=0)
        axes.tick_params("x", colors=NOTE)
        axes.grid(axis="x", color=BAR, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        return figure

    def _ordered(self, bars: Sequence[Bar]) -> list[Any]:
        if all(bar.label[:1].isdigit() for bar in bars):
            return list(bars)
        return sorted(bars, key=lambda bar: bar.value, reverse=not self.ascending)


def _draw_bar(axes: Any, row: int, bar: Bar, most: float) -> None:
    axes.barh(row, bar.value, 0.68, color=OURS if bar.ours else BAR)
    end = bar.value
    if bar.interval is not None:
        low, end = bar.interval
        axes.plot((low, end), (row, row), color=INK, linewidth=1.2)
    weight = "bold" if bar.ours else "normal"
    axes.annotate(bar.text, (end, row), (5, 0), textcoords="offset points", va="center", color=INK, weight=weight)


@dataclass(frozen=True)
class Box:
    """A box of two lines at a column and a line of the grid, which may be fractions."""

    label: str
    note: str
    column: float
    line: float


@dataclass(frozen=True)
class Diagram:
    """A diagram of boxes and arrows.

    Attributes:
        title: what it shows.
        note: what the dashed frames are, or another sentence.
        boxes: by name.
        arrows: from a box to a box, with a text.
        processes: the boxes that a dashed frame has together.
    """

    title: str
    note: str
    boxes: Mapping[str, Box]
    arrows: Sequence[tuple[str, str, str]]
    processes: Sequence[Sequence[str]] = ()

    def svg(self) -> str:
        """Draw the picture."""
        lines, columns = (max(getattr(box, of) for box in self.boxes.values()) for of in ("line", "column"))
        width, height = columns * COLUMN + BOX_WIDTH, lines * LINE + BOX_HEIGHT
        figure, axes = _figure(max(WIDTH, width + 0.4), height + HEAD + 0.4, self.title, self.note)
        axes.set(xlim=(-0.15, max(WIDTH - 0.4, width) + 0.15), ylim=(height + 0.15, -0.15), aspect="equal", anchor="NW")
        axes.axis("off")
        for names in self.processes:
            self._frame(axes, [self.boxes[name] for name in names])
        for arrow in self.arrows:
            self._arrow(axes, *arrow)
        for box in self.boxes.values():
            x, y = box.column * COLUMN, box.line * LINE
            _rectangle(axes, x, y, BOX_WIDTH, BOX_HEIGHT, facecolor=PAPER, edgecolor=NOTE)
            middle = x + BOX_WIDTH / 2
            axes.text(middle, y + (0.15 if box.note else 0.225), box.label, ha="center", va="center", color=INK)
            axes.text(middle, y + 0.33, box.note, ha="center", va="center", color=NOTE, fontsize=8)
        return _svg(figure, f"{self.title}. {self.note}")

    def _frame(self, axes: Any, boxes: Sequence[Box]) -> None:
        x, y = min(box.column for box in boxes) * COLUMN - 0.09, min(box.line for box in boxes) * LINE - 0.09
        right, below = max(box.column for box in boxes) * COLUMN, max(box.line for box in boxes) * LINE
        width, height = right + BOX_WIDTH + 0.09 - x, below + BOX_HEIGHT + 0.09 - y
        _rectangle(axes, x, y, width, height, facecolor="none", edgecolor=OURS, linestyle="--")

    def _arrow(self, axes: Any, begin: str, end: str, text: str) -> None:
        first, last = self.boxes[begin], self.boxes[end]
        x1, y1 = first.column * COLUMN + BOX_WIDTH, first.line * LINE + BOX_HEIGHT / 2
        x2, y2 = last.column * COLUMN, last.line * LINE + BOX_HEIGHT / 2
        if first.column == last.column:
            x1 = x2 = x2 + BOX_WIDTH / 2
            y1, y2 = (y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2)
        axes.annotate(
            "", (x2, y2), (x1, y1), arrowprops={"arrowstyle": "-|>", "color": NOTE, "shrinkA": 0, "shrinkB": 0}
        )
        axes.text((x1 + x2) / 2 + 0.05, (y1 + y2) / 2 - 0.08, text, color=NOTE, fontsize=8)


def _rectangle(axes: Any, x: float, y: float, width: float, height: float, **style: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    rounded = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=rounded, linewidth=1, **style))


def _figure(width: float, height: float, title: str, note: str) -> tuple[Figure, Any]:
    """Return a figure of a size in inches and its axes, below the title."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        figure.set_layout_engine("constrained", rect=(0.01, 0, 0.98, 1 - HEAD / height))
        axes = figure.subplots()
    figure.text(0.02, 1 - 0.12 / height, title, size=13, weight="bold", color=INK, va="top")
    figure.text(0.02, 1 - 0.4 / height, note, color=NOTE, va="top")
    return figure, axes


def _svg(figure: Figure, described: str) -> str:
    """Write a figure as SVG with a title, and with the colours for a dark page."""
    out = io.StringIO()
    with mpl.rc_context(SETTINGS):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    head = f"<title>{escape(described)}</title><style>@media(prefers-color-scheme:dark){{{rules}}}</style>"
    text = out.getvalue()
    return re.sub(r"(<svg [^>]*>)", lambda found: found[1] + head, text[text.index("<svg") :], count=1)
