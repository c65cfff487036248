"""Charts of the documentation as SVG, light or dark as the reader's system is: `ensemble pictures`."""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from ensemble_models.options import Command
from scripts.shipped import CHECKOUT

DOCS = CHECKOUT / "docs"
IMAGES = DOCS / "images"
MACHINE = "two virtual CPUs of an AMD EPYC (Zen 4)"
SYSTEMS = {
    ("limit", None): "the models without a server",
    ("ours", "colocated"): "this application, one process",
    # By HTTP alone.
    ("colocated", "colocated"): "this application, one process",
    ("ours", "separate"): "this application, every node separate",
    ("throughput", "colocated"): "this application, a process per core",
    ("cascade", "colocated"): "this application, one process, the cascade",
    ("triton", None): "Triton's ensemble, a process per step",
    ("triton-callable", None): "Triton, one Python model for all steps",
    ("mlserver", None): "MLServer",
}
WIDTH, ROW, HEAD, FOOT = 9.6, 0.27, 0.75, 0.45
# Letters in a line of a title and of a note, and the heights of a further line of each.
TITLE, NOTES, TITLE_LINE, NOTE_LINE = 80, 110, 0.24, 0.2
# The colours on a light page and on a dark one; ours is the only colour.
INK, NOTE, BAR, OURS = "#1f2328", "#59636e", "#afb8c1", "#0969da"
DARK = {INK: "#e6edf3", NOTE: "#9198a1", BAR: "#656c76", OURS: "#4493f8"}
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
    """

    label: str
    value: float
    text: str
    ours: bool = False


Groups = Sequence[tuple[str, Sequence[Bar]]]


@dataclass(frozen=True)
class Bars:
    """A bar for each row, in the rows' order: its length's figure, and templates that the row's figures fill in."""

    value: str
    label: str
    text: str
    group: str = ""
    ours: Callable[[Mapping[str, Any]], Any] = lambda row: False

    def groups(self, rows: Sequence[Mapping[str, Any]]) -> Groups:
        """Draw the rows that have the figure, the groups in the order of the rows."""
        groups: dict[str, list[Bar]] = {}
        for row in rows:
            if row.get(self.value) is not None:
                bar = Bar(self.label.format(**row), row[self.value], self.text.format(**row), bool(self.ours(row)))
                groups.setdefault(self.group.format(**row), []).append(bar)
        return list(groups.items())


@dataclass(frozen=True)
class Chart:
    """A chart of horizontal bars on an axis that begins at 0.

    Attributes:
        title: the compared quantity, with the unit.
        note: the machine, the size of images and the date.
        groups: bars in their order, under a heading, which may be empty.
    """

    title: str
    note: str
    groups: Groups

    def svg(self) -> str:
        """Draw the picture as a file."""
        return _svg(self.figure(), f"{self.title}. {self.note}")

    def figure(self) -> Figure:
        """Draw the picture."""
        lines: list[str | Bar] = []
        for heading, bars in self.groups:
            lines += [heading, *bars] if heading else bars
        figure, axes = _figure(WIDTH, FOOT + ROW * len(lines), self.title, self.note)
        most = max(bar.value for bar in lines if isinstance(bar, Bar))
        for row, line in enumerate(lines):
            if isinstance(line, Bar):
                _draw_bar(axes, row, line, most)
        labels = [line.label if isinstance(line, Bar) else line for line in lines]
        axes.set_yticks(range(len(lines)), labels)
        for text, line in zip(axes.get_yticklabels(), lines, strict=True):
            is_bold = isinstance(line, str) or line.ours
            text.set(color=NOTE if isinstance(line, str) else INK, weight="bold" if is_bold else "normal")
        axes.set(xlim=(0, most), ylim=(len(lines) - 0.4, -0.6))
        axes.tick_params(length=0)
        axes.tick_params("x", colors=NOTE)
        axes.grid(axis="x", color=BAR, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        return figure


def _draw_bar(axes: Any, row: int, bar: Bar, most: float) -> None:
    axes.barh(row, bar.value, 0.68, color=OURS if bar.ours else BAR)
    weight = "bold" if bar.ours else "normal"
    axes.annotate(bar.text, (bar.value, row), (5, 0), textcoords="offset points", va="center", color=INK, weight=weight)


def _figure(width: float, height: float, title: str, note: str) -> tuple[Figure, Any]:
    """Return a figure whose axes have a size in inches, and these axes, below the title."""
    titles, notes = textwrap.wrap(title, TITLE), textwrap.wrap(note, NOTES)
    below_title = 0.4 + TITLE_LINE * (len(titles) - 1)
    head = HEAD - 0.4 + below_title + NOTE_LINE * max(len(notes) - 1, 0)
    height += head
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        figure.set_layout_engine("constrained", rect=(0.01, 0, 0.98, 1 - head / height))
        axes = figure.subplots()
    figure.text(0.02, 1 - 0.12 / height, "\n".join(titles), size=13, weight="bold", color=INK, va="top")
    figure.text(0.02, 1 - below_title / height, "\n".join(notes), color=NOTE, va="top")
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


def charts() -> dict[str, Chart]:
    """Return every chart by the name of its file in docs/images."""
    return {
        "photographs": _requests("photographs", f"HTTP, three models in int8, 500x375; {MACHINE}, 2026-11-29"),
        "embedded": _requests("embedded", f"HTTP, the bundled models in int8, images of 15 KB; {MACHINE}, 2026-11-28"),
        "imagenet": _requests("imagenet", f"HTTP, ResNet-50 and DenseNet-169, 224x224; {MACHINE}, 2026-11-26"),
        "stages": _stages(),
    }


def _rows(name: str) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def _requests(workload: str, note: str) -> Chart:
    rows = [
        {**row, "label": SYSTEMS[row["system"], row["placement"]]}
        for row in sorted(_rows(workload), key=lambda row: (row["clients"], -row["requests_per_s"]))
        if row["protocol"] in {None, "http"} and row["clients"] in {8, 32}
    ]
    own = {"ours", "colocated", "throughput", "cascade"}
    bars = Bars(
        "requests_per_s", "{label}", "{requests_per_s:.0f}", "{clients} clients", lambda row: row["system"] in own
    )
    return Chart("Requests per second; more is better", note, bars.groups(rows))


def _stages() -> Chart:
    groups = []
    for row in _rows("stages"):
        taken = row["stages_ms"]
        members = max(ms for stage, ms in taken.items() if stage.startswith("predict-"))
        nodes = {stage: taken[stage] for stage in ("queue", "decode", "combine", "label")}
        stages = {
            "client, sockets, HAProxy, uvicorn": row["mean_ms"] - taken["total"],
            "ingress: route, hand-over, waking": taken["total"] - members - sum(nodes.values()),
            "queue": nodes["queue"],
            "decoding": nodes["decode"],
            "the slowest member": members,
            "combiner and labeler": nodes["combine"] + nodes["label"],
        }
        bars = [Bar(stage, ms, f"{ms:.2f}", ours=stage != "the slowest member") for stage, ms in stages.items()]
        groups.append((f"{row['value']:.0f} at a time, {row['mean_ms']:.1f} ms", bars))
    machine = "two virtual CPUs of a Xeon with VNNI, beside other work"
    note = f"the bundled models in one process, HTTP, images of 15 KB; {machine}, 2026-11-27"
    return Chart("Where a request's time is, ms; the means of the server's own spans", note, groups)


@click.command("pictures", cls=Command)
def main() -> None:
    """Draw the charts of the documentation from its own figures, as SVG, light or dark as the reader's system is.

    Run it after a figure of a drawn table, or a file of docs/benchmarks, has changed; a test fails until it is done.
    The diagrams in docs/images are edited by hand.
    """
    pictures = charts()
    for name, picture in pictures.items():
        (IMAGES / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    print(f"drew {', '.join(pictures)} in {IMAGES}")


if __name__ == "__main__":
    main()
