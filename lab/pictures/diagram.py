"""Diagrams of boxes and arrows as SVG, in the style of the charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

HEIGHT, COLUMN, LINE, MARGIN, TOP = 40, 150, 60, 16, 64
# So that the text of all has one size beside each other.
LEAST = 930
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-size:16px;font-weight:600}
.note{fill:#59636e;font-size:12px}.box{fill:#f6f8fa;stroke:#8c959f}
.process{fill:none;stroke:#0969da;stroke-dasharray:5 4}
.arrow{fill:none;stroke:#59636e}.head{fill:#59636e}@media(prefers-color-scheme:dark){text{fill:#e6edf3}
.note,.head{fill:#9198a1}.box{fill:#151b23;stroke:#656c76}.process{stroke:#4493f8}.arrow{stroke:#9198a1}}"""


@dataclass(frozen=True)
class Box:
    """A box of two lines at a column and a line of the grid, which may be fractions."""

    label: str
    note: str
    column: float
    line: float


@dataclass(frozen=True)
class Diagram:
    """A diagram.

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
        """The picture."""
        width = max(LEAST, int(max(_right(box) for box in self.boxes.values())) + MARGIN + 8)
        height = int(max(_y(box) for box in self.boxes.values())) + HEIGHT + MARGIN + 8
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(self.title)}. {escape(self.note)}</title><style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto">'
            '<path d="M0 0L8 4L0 8z" class="head"/></marker></defs>',
            f'<text x="{MARGIN}" y="26" class="title">{escape(self.title)}</text>',
            f'<text x="{MARGIN}" y="44" class="note">{escape(self.note)}</text>',
            *(self._frame([self.boxes[name] for name in names]) for names in self.processes),
            *(self._arrow(*arrow) for arrow in self.arrows),
            *(self._box(box) for box in self.boxes.values()),
        ]
        return "\n".join([*parts, "</svg>\n"])

    def _frame(self, boxes: Sequence[Box]) -> str:
        x, y = min(map(_x, boxes)) - 8, min(map(_y, boxes)) - 8
        width, height = max(map(_right, boxes)) + 8 - x, max(map(_y, boxes)) + HEIGHT + 8 - y
        return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="process"/>'

    def _box(self, box: Box) -> str:
        x, y = _x(box), _y(box)
        middle = x + (_right(box) - x) / 2
        return (
            f'<rect x="{x:g}" y="{y:g}" width="{_right(box) - x:g}" height="{HEIGHT}" rx="5" class="box"/>'
            f'<text x="{middle:g}" y="{y + 17:g}" text-anchor="middle">{escape(box.label)}</text>'
            f'<text x="{middle:g}" y="{y + 32:g}" text-anchor="middle" class="note">{escape(box.note)}</text>'
        )

    def _arrow(self, begin: str, end: str, text: str) -> str:
        first, last = self.boxes[begin], self.boxes[end]
        x1, y1, x2, y2 = _right(first), _y(first) + HEIGHT / 2, _x(last), _y(last) + HEIGHT / 2
        if first.column == last.column:
            x1 = x2 = (_x(first) + _right(first)) / 2
            y1, y2 = (_y(first) + HEIGHT, _y(last)) if first.line < last.line else (_y(first), _y(last) + HEIGHT)
        x, y = (x1 + x2) / 2 + 6, (y1 + y2) / 2 - 4
        label = f'<text x="{x:g}" y="{y:g}" class="note">{escape(text)}</text>' if text else ""
        return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="arrow" marker-end="url(#head)"/>{label}'


def _x(box: Box) -> float:
    return MARGIN + 8 + box.column * COLUMN


def _right(box: Box) -> float:
    return _x(box) + COLUMN - 34


def _y(box: Box) -> float:
    return TOP + box.line * LINE
