"""How a table of top-1 accuracies is shown: in the terminal, as Markdown, as JSON, as a bar chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from graph.flows.interval import wilson
from scripts import results
from scripts.errors import ScriptError
from scripts.interval import Interval

ENSEMBLE = "ensemble"
HEADER = ("model", "version", "precision", "top-1, %", "95 % interval", "images")
# The positions of the columns that hold words.
WORDS = (0, 2)


@dataclass(frozen=True)
class Score:
    """One line of the table.

    Attributes:
        name: the member, or `ensemble`.
        precision: `FP16`, `FP32` or `INT8`; what the members differ in is joined by a plus.
        top1: in percent, 0 to 100.
        images: how many it was measured on.
        version: the member's version; None for an ensemble.
    """

    name: str
    precision: str
    top1: float
    images: int
    version: int | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's text, in the order of `HEADER`."""
        version = "" if self.version is None else str(self.version)
        low, _, high = wilson(round(self.top1 / 100 * self.images), self.images)
        interval = f"{100 * low:.2f} to {100 * high:.2f}"
        return self.name, version, self.precision, f"{self.top1:.2f}", interval, f"{self.images:,}"


def gain(ensemble: Score, members: Sequence[Score], difference: Interval | None = None) -> str:
    """A sentence on what the ensemble is worth, against the best of the members that it is made of.

    Args:
        ensemble: its score.
        members: theirs.
        difference: of the two, paired by image, if the images' answers are known.
    """
    best = max(members, key=lambda score: score.top1)
    points = ensemble.top1 - best.top1
    sure = f" ({paired(difference)})" if difference else ""
    sentence = (
        f"{ensemble.precision} ensemble: {points:+.2f} points of top-1 against its best member, {best.name}{sure}"
    )
    if best.top1 == 100:
        return sentence
    share = points / (100 - best.top1)
    return f"{sentence}; it {'removes' if share >= 0 else 'adds'} {abs(share):.1%} of that member's errors"


def paired(difference: Interval) -> str:
    """The ends of the interval of a difference."""
    return f"paired 95 % interval {difference.low:+.2f} to {difference.high:+.2f}"


def table(scores: Sequence[Score]) -> Table:
    """The scores for the terminal."""
    result = Table()
    for position, title in enumerate(HEADER):
        result.add_column(title, justify="left" if position in WORDS else "right")
    for score in scores:
        result.add_row(*score.cells, style="bold" if score.name == ENSEMBLE else None)
    return result


def markdown(scores: Sequence[Score], sentences: Sequence[str]) -> str:
    """The scores as a Markdown table, and the sentences below it."""
    compared = results.Table(HEADER, [score.cells for score in scores], words=WORDS)
    return compared.markdown() + "\n" + "".join(f"- {sentence}\n" for sentence in sentences)


def to_json(scores: Sequence[Score]) -> str:
    """A list of `{"name", "precision", "top1", "images", "version"}`; `top1` in percent."""
    return json.dumps([asdict(score) for score in scores], indent=2) + "\n"


def plot(scores: Sequence[Score], path: Path) -> None:
    """Write a bar chart, one group a model and one bar a precision; the suffix (.svg, .png) decides the format.

    Raises:
        ScriptError: Matplotlib is missing, or doesn't know the suffix.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise ScriptError("--plot needs Matplotlib: pip install -e '.[plot]'") from err
    names = list(dict.fromkeys(score.name for score in scores))
    precisions = list(dict.fromkeys(score.precision for score in scores))
    figure = Figure(figsize=(2 + 1.4 * len(names), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(precisions)
    for shift, kind in enumerate(precisions):
        # The latest version of a model speaks for its precision.
        heights = {score.name: score.top1 for score in scores if score.precision == kind}
        offset = (shift - (len(precisions) - 1) / 2) * width
        bars = axes.bar([names.index(name) + offset for name in heights], list(heights.values()), width, label=kind)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=9)
    floor = max(0, 5 * (math.floor(min(score.top1 for score in scores) / 5) - 1))
    axes.set_ylim(floor, 100)
    axes.set_ylabel("top-1, %" if floor == 0 else f"top-1, % (the axis starts at {floor})")
    axes.set_xticks(range(len(names)), names)
    axes.set_title(f"{max(score.images for score in scores):,} images")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", ncols=len(precisions), frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as err:
        raise ScriptError(f"can't draw {path}: {err}") from err
