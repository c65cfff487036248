"""How top-1 accuracies are reported: a table, sentences on the ensembles, and the file of a picture."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from deployments.contract.proportion import wilson
from ensemble_models.options import Table
from ensemble_models.statistics import Interval, calibration_error, paired
from scripts.errors import ScriptError

ENSEMBLE = "ensemble"
HEADINGS = ("model", "version", "precision", "top-1, %", "95 % interval", "ECE, %", "images")


@dataclass(frozen=True)
class Score:
    """One line of the table.

    Attributes:
        name: the member, or `ensemble`.
        precision: `FP16`, `FP32` or `INT8`; an ensemble of several has them joined by a plus.
        top1: in percent, 0 to 100.
        images: how many it was measured on.
        version: the member's version; None for an ensemble, or a model on another server.
        ece: the expected calibration error, in percent; see `calibration_error`.
    """

    name: str
    precision: str
    top1: float
    images: int
    version: int | None
    ece: float

    @classmethod
    def of(
        cls, name: str, precision: str, sure: Probabilities, right: NDArray[np.bool_], version: int | None = None
    ) -> Self:
        """Score answers by how probable they are, and whether they are right, both [N]."""
        top1 = 100 * int(right.sum()) / len(right)
        return cls(name, precision, top1, len(right), version, calibration_error(sure, right))

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's text, in the order of `HEADINGS`."""
        version = "" if self.version is None else str(self.version)
        low, _, high = wilson(round(self.top1 / 100 * self.images), self.images)
        interval = f"{100 * low:.2f} to {100 * high:.2f}"
        return self.name, version, self.precision, f"{self.top1:.2f}", interval, f"{self.ece:.2f}", f"{self.images:,}"


def table(scores: Sequence[Score], sentences: Sequence[str] = ()) -> Table:
    """Make a table of scores, with sentences below it."""
    return Table(HEADINGS, [score.cells for score in scores], words=(0, 2), notes=sentences)


def joined(members: Sequence[Score]) -> str:
    """Join the precisions of an ensemble's members."""
    return "+".join(dict.fromkeys(score.precision for score in members))


def gain(ensemble: Score, members: Sequence[Score], difference: Interval | None = None) -> str:
    """Compare an ensemble with the best of its members in a sentence, with the difference paired by image."""
    best = max(members, key=lambda score: score.top1)
    points = ensemble.top1 - best.top1
    interval = f" ({paired(difference)})" if difference else ""
    sentence = (
        f"{ensemble.precision} ensemble: {points:+.2f} points of top-1 against its best member, {best.name}{interval}"
    )
    if best.top1 == 100:
        return sentence
    share = points / (100 - best.top1)
    return f"{sentence}; it makes {abs(share):.1%} {'fewer' if share >= 0 else 'more'} errors than that member"


@contextmanager
def figure_file(path: Path) -> Iterator[Any]:
    """Yield a figure of Matplotlib, and write it after the block, as PNG or SVG by the file's name.

    Raises:
        ScriptError: Matplotlib is missing, or writes no such file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise ScriptError("--plot needs Matplotlib: pip install matplotlib") from err
    figure = Figure(layout="constrained")
    yield figure
    try:
        # Without the date the same results give the same file.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except ValueError as err:
        raise ScriptError(f"can't draw {path}: {err}") from err
