"""A chart of horizontal bars as SVG, light or dark as its reader's system is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABELS, VALUES, ROW, MARGIN = 840, 330, 220, 22, 16
# Transparent, so that it stands on any page; ours is the only colour.
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-size:16px;font-weight:600}.note,.group{fill:#59636e}
.group{font-weight:600}.bar{fill:#afb8c1}.ours{fill:#0969da}.mark{font-weight:600}.interval{stroke:#1f2328;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note,.group{fill:#9198a1}.bar{fill:#656c76}.ours{fill:#4493f8}.interval{stroke:#e6edf3}}"""  # noqa: E501


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
    """A chart.

    Attributes:
        title: what is compared, with the unit.
        note: the machine, the size of images and the date.
        groups: bars under a heading, which may be empty.
        start: the value at the left end.
        ascending: whether the least is the best, and first.
    """

    title: str
    note: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    start: float = 0.0
    ascending: bool = False

    def svg(self) -> str:
        """The picture; its bars are sorted, the best first."""
        parts = [
            f'<text x="{MARGIN}" y="26" class="title">{escape(self.title)}</text>',
            f'<text x="{MARGIN}" y="46" class="note">{escape(self.note)}</text>',
        ]
        y = 72
        for heading, bars in self.groups:
            if heading:
                parts.append(f'<text x="{MARGIN}" y="{y}" class="group">{escape(heading)}</text>')
                y += ROW
            for bar in sorted(bars, key=lambda each: each.value, reverse=not self.ascending):
                parts += self._drawn(bar, y)
                y += ROW
            y += ROW // 2
        height, described = y, f"{escape(self.title)}. {escape(self.note)}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        return "\n".join([head, f"<title>{described}</title>", f"<style>{STYLE}</style>", *parts, "</svg>\n"])

    def _drawn(self, bar: Bar, y: int) -> Iterator[str]:
        kind, mark = ("bar ours", ' class="mark"') if bar.ours else ("bar", "")
        length = self._at(bar.value) - LABELS
        yield f'<text x="{LABELS - 8}" y="{y}" text-anchor="end"{mark}>{escape(bar.label)}</text>'
        yield f'<rect x="{LABELS}" y="{y - 12}" width="{length:.1f}" height="15" rx="2" class="{kind}"/>'
        end = bar.value
        if bar.interval is not None:
            low, end = bar.interval
            yield f'<path d="M{self._at(low):.1f} {y - 4}H{self._at(end):.1f}" class="interval"/>'
        yield f'<text x="{self._at(end) + 6:.1f}" y="{y}"{mark}>{escape(bar.text)}</text>'

    def _at(self, value: float) -> float:
        bars = [bar for _, group in self.groups for bar in group]
        most = max(bar.interval[1] if bar.interval else bar.value for bar in bars)
        return LABELS + (value - self.start) / (most - self.start) * (WIDTH - LABELS - VALUES)
