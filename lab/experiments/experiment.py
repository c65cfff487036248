"""An experiment: a declaration of measurements, comparison and picture, and the run that stores and shows them."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from string import Formatter
from typing import Any

import yaml
from tqdm import tqdm

from deployments.cpus import available_cpus
from ensemble_capacity.load.measure import Row as Measured
from ensemble_models.dataset import Dataset
from ensemble_models.options import Table, default_data
from lab import reported
from lab.benchmark.workloads import imagenet_models, originals, photograph_files
from lab.experiments.comparison import beside_reported
from lab.pictures import Bars, Chart, Groups
from lab.rows import Part, Row, Rows, enough, filled, medians, table
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT

FOLDER, IMAGES = CHECKOUT / "docs" / "experiments", CHECKOUT / "docs" / "images"
# Around an experiment's tables on a page, by its name.
BEGIN, END = "<!-- {}: written by `ensemble experiments` -->\n", "<!-- end of {} -->\n"
DECLARED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("declared.yaml").read_text(encoding="utf-8"))
MOST_MINUTES = 30


@dataclass(frozen=True)
class Result:
    """The stored result of a run: its machine, date, commit, seconds of each load, and rows.

    `setting` names the models and images of the run; the experiment may have changed since.
    """

    machine: str
    date: str
    commit: str
    seconds: float
    setting: str
    rows: Rows


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        name: on the command line, on its page and of the picture.
        title: of the picture, with the unit.
        setting: the served models and the sent images.
        needs: the packages, images and models (`DATA_NEEDED`) without which no part is measured.
        parts: that make the rows, by the seconds of each load.
        columns: of the table: headings, each with a template that a row's figures fill in, as `p50, ms {p50_ms:.1f}`,
            with bars between them. A column whose template has no format holds words.
        picture: the bars of the rows that are shown.
        seconds: of each load, unless others are asked for; 0 if nothing is loaded.
        figures: of which the page has the medians, because rows are measured several times; none to show all rows.
        rounds: in each of which every part is measured once.
        shown: makes the rows of the table and the picture from the measured rows, or from their medians.
        tabled: makes the table's rows from the rows that are shown.
        notes: sentences below the table, of the rows that are shown.
        row: a template that names a row that is shown.
        beside: templates of the figures here, by the `subject` of a reported one; `at` has the rows of enough requests
            by their names.
        computed: makes further such figures from the shown rows, where several rows are compared.
        differs: differences from the setup of the reported figures.
        minutes: that a run takes on two cores; `all` leaves out a long one.
    """

    name: str
    title: str
    setting: str
    parts: Callable[[float], Sequence[Part]]
    columns: str
    picture: Bars | Callable[[Rows], Groups]
    seconds: float
    needs: Sequence[str] = ()
    figures: Sequence[str] = ()
    rounds: int = 1
    shown: Callable[[Rows], Rows] = lambda rows: rows
    tabled: Callable[[Rows], Rows] = lambda rows: rows
    notes: Callable[[Rows], Sequence[str]] = lambda rows: ()
    row: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    computed: Callable[[Rows], Mapping[str, str]] = lambda rows: {}
    differs: str = ""
    minutes: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether a run takes too long for `all`."""
        return self.minutes > MOST_MINUTES

    @property
    def file(self) -> Path:
        """The file of its result."""
        return FOLDER / f"{self.name}.json"

    @property
    def page(self) -> Path:
        """The page that has a place for its tables; the sentences around it are written by hand.

        Raises ScriptError if no page has the place, or several have it.
        """
        begin = BEGIN.format(self.name)
        found = [page for page in FOLDER.glob("*.md") if begin in page.read_text(encoding="utf-8")]
        if len(found) != 1:
            raise ScriptError(f"{len(found)} pages in {FOLDER} have the line {begin.strip()}; write it in one page")
        return found[0]

    @property
    def _partial(self) -> Path:
        return FOLDER / f"{self.name}.partial.json"

    def check(self) -> None:
        """Raise ScriptError if a package, images or models are missing; models are made if they can be."""
        packages = [each for each in self.needs if each not in DATA_NEEDED]
        if lacking := [name for name in packages if find_spec(name) is None]:
            raise ScriptError(f"{', '.join(lacking)} missing: make train, or pip install {EXTRAS}")
        for each in DATA_NEEDED.keys() & self.needs:
            DATA_NEEDED[each]()

    def compare(self, rows: Rows) -> Mapping[str, str]:
        """Write the figures of the rows that are shown, by the `subject` of a reported one."""
        told = {subject: filled(text, self._by_name(rows)) for subject, text in self.beside.items()}
        return {**{subject: text for subject, text in told.items() if text}, **self.computed(rows)}

    def value(self, subject: str, rows: Rows) -> float:
        """Return the first figure beside a reported one."""
        name = next(name for _, name, *_ in Formatter().parse(self.beside[subject]) if name)
        return float(Formatter().get_field(name, (), self._by_name(rows))[0])

    def _by_name(self, rows: Rows) -> Row:
        return {"at": {self.row.format_map(defaultdict(str, row)): row for row in enough(rows)}}

    def stored(self) -> Result | None:
        """Read the result of the last run."""
        return Result(**json.loads(self.file.read_text(encoding="utf-8"))) if self.file.exists() else None

    def run(self, seconds: float | None, *, again: bool) -> bool:
        """Measure and write all files, unless this commit did on this machine; tell whether it was measured."""
        chosen, (machine, commit) = seconds or self.seconds, origin()
        last = self.stored()
        if last is not None and (last.machine, last.commit) == (machine, commit) and not again:
            return False
        rows = self._resumed([machine, commit, chosen])
        result = Result(machine, datetime.now(UTC).date().isoformat(), commit, chosen, self.setting, rows)
        self.file.write_text(json.dumps(asdict(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        self._partial.unlink(missing_ok=True)
        self.draw()
        return True

    def _resumed(self, of: list[Any]) -> Rows:
        """Measure all parts that no interrupted run of the same machine, commit and seconds has stored."""
        stored = json.loads(self._partial.read_text(encoding="utf-8")) if self._partial.exists() else {}
        done: dict[str, Rows] = stored["parts"] if stored.get("of") == of else {}
        # The parts of all rounds share what they make, as predictions of all images.
        each = self.parts(of[-1])
        parts = [replace(part, name=f"{part.name}, {turn}") for turn in range(self.rounds) for part in each]
        left = [part for part in parts if part.name not in done]
        minutes = self.minutes * len(left) / len(parts)
        about = f"about {minutes:.0f} minutes" + ("" if of[-1] == self.seconds else " at the default length")
        print(f"{self.name}: {len(left)} of {len(parts)} parts are left, {about}", flush=True)
        for part in tqdm(left, self.name, unit="part", disable=len(parts) == 1):
            done[part.name] = part.rows()
            self._partial.write_text(json.dumps({"of": of, "parts": done}), encoding="utf-8")
        return [row for part in parts for row in done[part.name]]

    def summary(self, rows: Rows) -> Rows:
        """Make the rows of the page from the measured rows."""
        return self.shown(medians(rows, self.figures) if self.figures else rows)

    def draw(self) -> None:
        """Write the page's tables and the picture anew from the stored result."""
        page, svg = self.drawn()
        self.page.write_text(page, encoding="utf-8")
        (IMAGES / f"{self.name}.svg").write_text(svg, encoding="utf-8")

    def drawn(self) -> tuple[str, str]:
        """Make the page and the picture of the stored result.

        Raises ScriptError if nothing is stored, or no page has a place for it.
        """
        result, page = self.stored(), self.page
        if result is None:
            raise ScriptError(f"{self.name} has no result in {FOLDER}; run it")
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN.format(self.name))
        _, end, after = rest.partition(END.format(self.name))
        if not end:
            raise ScriptError(f"{page.name} has no line {END.format(self.name).strip()}")
        rows = self.summary(result.rows)
        loads = f", {result.seconds:g} s of each load" if result.seconds else ""
        origin = (
            f"{result.setting}. {result.machine}, {result.date}, commit `{result.commit}`{loads}. "
            f"{self._counted(rows)}[All rows]({self.file.name}).\n\n"
        )
        shown = f"\n![{self.title}](../images/{self.name}.svg)\n"
        beside = beside_reported(reported.of(self.name), self.compare(rows), self.differs)
        text = "\n".join([shown, *filter(None, [beside]), self.table(rows).markdown(), origin])
        groups = self.picture.groups(rows) if isinstance(self.picture, Bars) else self.picture(rows)
        note = f"{result.setting}; {result.machine}, {result.date}".replace("`", "")
        return before + begin + text + end + after, Chart(self.title, note, groups).svg()

    def table(self, rows: Rows) -> Table:
        """Make the table of the rows that are shown."""
        return table(self.columns, self.tabled(rows), self.notes(rows))

    def _counted(self, rows: Rows) -> str:
        """Write the fewest and the most requests of a row, and the failed ones, if no column of the table has them."""
        requests = [row["requests"] for row in rows if row.get("requests")]
        failures = [row["failed"] for row in rows if "failed" in row]
        told = []
        if requests and not re.search(r"[{\[]requests\b", self.columns):
            told.append(f"requests per row: {min(requests):,} to {max(requests):,}")
        if failures and not re.search(r"[{\[]failed", self.columns):
            told.append(f"failed: {sum(failures):,}")
        return f"{'; '.join(told).capitalize()}. " if told else ""


def declared(name: str, *, ours: Callable[[Mapping[str, Any]], Any] = lambda row: False, **code: Any) -> Experiment:
    """Join the data of an experiment in declared.yaml with its code; `ours` chooses the coloured bars."""
    fields = {**DECLARED[name], **code}
    if isinstance(fields["picture"], dict):
        fields["picture"] = Bars(**fields["picture"], ours=ours)
    return Experiment(name=name, **{**fields, "columns": " | ".join(fields["columns"])})


def figures(row: Measured, *names: str) -> Row:
    """Take figures of a load by their names; its percentiles are called `p50_ms` and so on. Undefined ones are None."""
    percentiles = {f"{name}_ms": ms for name, ms in row.percentiles_ms.items()}
    found = {name: percentiles[name] if name in percentiles else getattr(row, name) for name in names}
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in found.items()}


def labelled() -> Dataset:
    """Open the labelled images; raises ScriptError if there are none."""
    if (data := default_data()) is None:
        raise ScriptError("set ENSEMBLE_DATA to a folder with cifar10/test.zip")
    return Dataset.open(data)


def training_images() -> Path:
    """Find the images that the bundled models were trained with; raises ScriptError if there are none."""
    if (test := default_data()) is None:
        raise ScriptError("set ENSEMBLE_DATA to a folder with cifar10/train.zip")
    return test.with_name("train.zip")


# By the names of images and models that an experiment needs: a function that raises ScriptError if there are none.
DATA_NEEDED: dict[str, Callable[[], object]] = {
    "photographs": originals,
    "photographs of ENSEMBLE_DATA": photograph_files,
    "labelled images": labelled,
    "training images": training_images,
    "ImageNet's networks": imagenet_models,
}
EXTRAS = "torch torchvision pyarrow '.[train,quantize,onnxruntime]'"


def origin() -> tuple[str, str]:
    """Name this machine, and the commit of this checkout."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return f"{available_cpus()} cores of {model}", _git("rev-parse", "--short=12", "HEAD")


def commits_since(commit: str) -> str:
    """Count the commits of this checkout after one; empty where it is not known."""
    return _git("rev-list", "--count", f"{commit}..HEAD")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()  # noqa: S603
