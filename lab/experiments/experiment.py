"""An experiment: what it measures beside what was reported, and its result, table and picture in docs/experiments."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from deployments.cpus import available_cpus
from lab import reported
from lab.benchmark.workloads import photographs
from lab.pictures.chart import Bar, Chart
from scripts.errors import ScriptError
from scripts.results import Table
from scripts.shipped import CHECKOUT

FOLDER, IMAGES = CHECKOUT / "docs" / "experiments", CHECKOUT / "docs" / "images"
BEGIN, END = "<!-- Written by `ensemble experiments`; a change down to the end is lost. -->\n", "<!-- end -->\n"
Rows = list[dict[str, Any]]
Groups = Sequence[tuple[str, Sequence[Bar]]]
# Of the log of a server that did not start, so many characters stand in its row.
LAST = 300


@dataclass(frozen=True)
class Here:
    """A figure that was measured here.

    Attributes:
        value: in the unit of the reported one; None for a finding in words, or for what was not measured.
        text: for people.
        differs: what is not as it was where the figure was reported.
    """

    value: float | None
    text: str
    differs: str


@dataclass(frozen=True)
class Part:
    """A part of an experiment that is measured, stored and resumed as a whole: mostly a server.

    Attributes:
        name: of the part, unique within the experiment.
        make: measures its rows.
        key: is in each of its rows; where it is empty, an error ends the experiment instead of becoming a row.
    """

    name: str
    make: Callable[[], Iterable[Mapping[str, Any]]]
    key: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> Rows:
        """What it measures, and in the end the error that it ended with, if any.

        Raises:
            ScriptError: it could not be measured, and has no key.
        """
        rows: Rows = []
        try:
            for row in self.make():
                rows.append({**self.key, **row})
        except ScriptError as err:
            if not self.key:
                raise
            end = " ".join(str(err).replace(str(CHECKOUT), ".").split())
            rows.append({**self.key, "error": end[-LAST:]})
        return rows


@dataclass(frozen=True)
class Result:
    """What is stored of a run: where and when it was made, of which commit, with how many seconds of each load."""

    machine: str
    date: str
    commit: str
    seconds: float
    rows: Rows

    @property
    def origin(self) -> tuple[str, str]:
        """What makes two runs alike."""
        return self.machine, self.commit


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        name: on the command line and of the page.
        title: of its picture, with the unit.
        images: that are sent, for the picture's note and the page.
        check: raises ScriptError if an extra, a peer or a dataset is missing.
        measure: gives its parts, which make the rows, given the seconds of each load.
        table: of all rows.
        compare: finds figures in the rows, by the `what` of a reported one.
        picture: the groups of bars.
        seconds: of each load, unless others are asked for; 0 if nothing is loaded.
        ascending: whether the least is the best.
    """

    name: str
    title: str
    images: str
    check: Callable[[], None]
    measure: Callable[[float], Sequence[Part]]
    table: Callable[[Rows], Table]
    compare: Callable[[Rows], Mapping[str, Here]]
    picture: Callable[[Rows], Groups]
    seconds: float
    ascending: bool = False

    @property
    def file(self) -> Path:
        """Where its result is stored."""
        return FOLDER / f"{self.name}.json"

    def stored(self) -> Result | None:
        """The result of the last run."""
        return Result(**json.loads(self.file.read_text(encoding="utf-8"))) if self.file.exists() else None

    def run(self, seconds: float | None, *, again: bool) -> bool:
        """Make it and write all its files, unless it was made by this commit on this machine; whether it was made."""
        chosen, (machine, commit) = seconds or self.seconds, origin()
        last = self.stored()
        if last is not None and last.origin == (machine, commit) and not again:
            return False
        rows = self._resumed([machine, commit, chosen])
        result = Result(machine, datetime.now(UTC).date().isoformat(), commit, chosen, rows)
        self.file.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
        self._partial.unlink(missing_ok=True)
        self.draw()
        return True

    @property
    def _partial(self) -> Path:
        """Where the parts of a run that has not ended are stored."""
        return FOLDER / f"{self.name}.partial.json"

    def _resumed(self, of: list[Any]) -> Rows:
        """The rows of all parts; those that an interrupted run of the same machine, commit and seconds stored stay."""
        stored = json.loads(self._partial.read_text(encoding="utf-8")) if self._partial.exists() else {}
        done: dict[str, Rows] = stored["parts"] if stored.get("of") == of else {}
        parts = self.measure(of[-1])
        for part in tqdm(parts, self.name, unit="part", disable=len(parts) == 1):
            if part.name not in done:
                done[part.name] = part.rows()
                self._partial.write_text(json.dumps({"of": of, "parts": done}), encoding="utf-8")
        return [row for part in parts for row in done[part.name]]

    def draw(self) -> None:
        """Write the page's tables and the picture anew from what is stored."""
        page, svg = self.drawn()
        (FOLDER / f"{self.name}.md").write_text(page, encoding="utf-8")
        (IMAGES / f"{self.name}.svg").write_text(svg, encoding="utf-8")

    def drawn(self) -> tuple[str, str]:
        """The page and the picture of what is stored; the page's sentences are those that it has."""
        result, page = self.stored(), FOLDER / f"{self.name}.md"
        if result is None or not page.exists():
            raise ScriptError(f"{self.name} has no result or no page in {FOLDER}; run it, and write its page")
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ScriptError(f"{page.name} has no place for its tables, from {BEGIN.strip()} to {END.strip()}")
        loads = f", {result.seconds:g} s of each load" if result.seconds else ""
        made = f"{self.images}. {result.machine}, {result.date}{loads}."
        shown = f"![{self.title}](../images/{self.name}.svg)"
        tables = [self.compared(result.rows)] if reported.of(self.name) else []
        tables.append(self.table(result.rows))
        text = "\n".join(["", f"{shown}\n", *(each.markdown() for each in tables), f"{made}\n\n"])
        note = f"{self.images}; {result.machine}, {result.date}"
        chart = Chart(self.title, note, self.picture(result.rows), ascending=self.ascending)
        return before + begin + text + end + after, chart.svg()

    def compared(self, rows: Rows) -> Table:
        """What was reported beside what was measured."""
        here = self.compare(rows)
        lines = []
        for each in reported.of(self.name):
            found = here.get(each.what, Here(None, "not measured", ""))
            lines.append([each.what, each.text, found.text, found.differs])
        return Table(("what", "reported", "here", "what differs"), lines, words=range(4))


def check_photographs() -> None:
    """Raise ScriptError if there are no photographs."""
    photographs("small")


def beside(name: str, here: Mapping[str, Here], unit: str) -> Groups:
    """A group of two bars for every figure of a unit: reported and here."""
    groups = []
    for each in reported.of(name):
        found = here.get(each.what)
        if each.unit == unit and each.value is not None and found is not None and found.value is not None:
            bars = Bar("reported", each.value, each.text), Bar("here", found.value, found.text, ours=True)
            groups.append((each.what, bars))
    return groups


def origin() -> tuple[str, str]:
    """This machine, and the commit of this checkout."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    head = subprocess.run(  # noqa: S603
        ["git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD"],  # noqa: S607
        capture_output=True,
        text=True,
    )
    return f"{available_cpus()} cores of {model}", head.stdout.strip()
