"""From plain Ray Serve, as it comes and as its documentation tunes it, to this application; and the price of the calls.

Every step of this application keeps those above it. All get the same images from the same clients over HTTP. The
stored figures are Locust's. Accuracy is measured on all labelled images, by the server's own decoding, prediction and
combination. The price of a million calls is computed for the machines of a document, at its traffic and at these rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from deployments.repository.repository import DEFAULT_ROOT, find
from ensemble_capacity.cost import HOURS_A_YEAR, Instance
from ensemble_capacity.load.load import Closed
from ensemble_models.dataset import Dataset, sample
from ensemble_models.ensembles import Members
from ensemble_models.tune_cascade import members_of
from lab.benchmark.systems import OURS, named, running
from lab.benchmark.workloads import CACHE, MEMBERS, Placement, Precision, Workload, changed, merge, workload
from lab.experiments.experiment import declared, figures, labelled
from lab.reported import of
from lab.rows import Part, Row, Rows, enough, side_by_side
from scripts.errors import ScriptError

CLIENTS = 32
# So many of the labelled images are sent.
SENT = 1000
STUDENT = "student"
# O. Cruchant, "Faster, Cheaper, Leaner" (2020): ResNet18, 26 pictures a minute. The rates are of one request at a time:
# 55 ms, 28 % less than the CPU machine, and 33 ms.
TRAFFIC = 26 / 60
INSTANCES = (
    Instance("ml.c5.2xlarge", 0.538, 1000 * (1 - 0.28) / 55),
    Instance("ml.t2.medium + ml.eia1.medium", 0.266, 1000 / 55),
    Instance("ml.p3.2xlarge", 4.627, 1000 / 33),
)
# The workload in a precision, and what the members predict for all labelled images.
Prepared = Callable[[Precision], tuple[Workload, Members]]
DECLARED: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Step:
    """A server to measure; ladder.yaml describes the fields."""

    name: str
    peer: str | None = None
    times: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = "separate"
    precision: Precision = "float32"
    args: Mapping[str, Any] = field(default_factory=dict)
    members: Sequence[str] = MEMBERS

    @property
    def exit_at(self) -> list[float] | None:
        """The thresholds of the cascade; None if all members are asked about every image."""
        cascade = self.args.get("ensemble", {}).get("cascade")
        return cascade and list(cascade["exit_at"])

    def edit(self, config: dict[str, Any]) -> None:
        """Change a Serve config of this application, so that it serves this, with one replica of each node."""
        args = config["applications"][0]["args"]
        if self.members != MEMBERS:
            args["members"] = [{**args["members"][0], "name": name} for name in self.members]
        changed(self.args, deployment={"autoscaling_config": None, "num_replicas": 1})(config)

    def measured(self, prepared: Prepared, seconds: float) -> Iterator[Row]:
        """Serve and load it. Raises ScriptError if it did not start, or answered nothing."""
        load, predicted = prepared(self.precision)
        system = OURS[self.placement] if self.peer is None else named([self.peer])[0]
        with running(system, load, self.edit, self.environment) as server:
            row = server.row(load, "http", Closed(CLIENTS), seconds * self.times)
        if not row.requests:
            raise ScriptError(f"no request was answered: {row.first_error}")
        yield {
            **figures(row, "requests", "failed", "first_error", "min_ms", "max_ms", "requests_per_s"),
            "median_ms": row.percentiles_ms["p50"],
            "average_ms": row.mean_ms,
            **self.accuracy(predicted),
        }

    def accuracy(self, predicted: Members) -> Row:
        """Compute its top-1, and the share of images that a cascade answers before its last member, percent."""
        if self.exit_at is None:
            answers, exits = predicted.combined(self.members).argmax(axis=1), None
        else:
            walk = predicted.walk(self.members, self.exit_at)
            answers, exits = walk.answers, 100 * sum(walk.stops[:-1])
        return {"top1": 100 * float((answers == predicted.labels).mean()), "exits": exits}


def ladder() -> list[Step]:
    """List the steps, from the foot."""
    found: list[Step] = []
    for own in DECLARED:
        args = deepcopy(dict(found[-1].args)) if found else {}
        merge(args, own.get("args", {}))
        found.append(replace(found[-1] if found else Step(""), **{**own, "args": args}))
    return found


def sent(dataset: Dataset) -> tuple[Path, ...]:
    """Write some of the labelled images, which are sent, to files."""
    folder, some = CACHE / "ladder", sample(dataset, SENT)
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{number:04}.jpg" for number in range(len(some)))
    for path, (encoded, _) in zip(files, some.read(), strict=True):
        path.write_bytes(encoded)
    return files


def parts(seconds: float) -> Sequence[Part]:
    """Make each step a part. Raises ScriptError if an image can't be read."""
    dataset = labelled()
    images = sent(dataset)

    @cache
    def prepared(precision: Precision) -> tuple[Workload, Members]:
        load = replace(workload("embedded", precision), images=images)
        models = [find(DEFAULT_ROOT, name, load.version) for name in (*MEMBERS, STUDENT)]
        return load, members_of(models, (), dataset, "mean")

    return [Part(step.name, partial(step.measured, prepared, seconds), {"step": step.name}) for step in ladder()]


def shown(rows: Rows) -> Rows:
    """Add how many times the rate of the step before each reaches."""
    found, before = [], None
    for row in rows:
        rate = row.get("requests_per_s")
        found.append({**row, **({"times": rate / before} if rate and before else {})})
        before = rate or before
    return found


def notes(rows: Rows) -> list[str]:
    """Tell the first failure of each step."""
    return [f"{row['step']}: the first failure was {row['first_error']!r}." for row in rows if row.get("failed")]


def compare(rows: Rows) -> Mapping[str, str]:
    """Put the foot of the ladder, and the last step that loses no accuracy, beside each of the reported ones."""
    found, own = {}, enough(rows)
    if not own or own[0] is not rows[0]:
        return {}
    kept = [row for row in own if row["top1"] >= own[0]["top1"]]
    for end, row in (("first", own[0]), ("last", kept[-1])):
        for what in ("food", "image scoring", "receipts"):
            found[f"{what}, {end}"] = f"{row['requests_per_s']:.1f} requests/s"
    return found


LADDER = declared(
    "ladder",
    parts=parts,
    ours=lambda row: not row["step"].startswith("plain"),
    shown=shown,
    notes=notes,
    computed=compare,
)


FULL, BUSY = 0.7, (0.7, 0.07)
# Virtual CPUs of the reported CPU machine, an ml.c5.2xlarge.
REPORTED_CPUS = 8
# Steps of the experiment `ladder`, and what is served there.
SETUPS = {
    "direct edges": "both, float32, a process per node",
    "int8": "both, int8, a process per node",
    "its own front instead of Serve's HAProxy": "both, int8, one process",
    "a cascade that ends at 0.7": "a cascade, int8, one process",
    "the student alone": "the student, int8, one process",
}


def costs() -> Rows:
    """Compute the document's machines at its traffic, and steps of the experiment `ladder` at shares of their rates."""
    found = [_row(each, TRAFFIC, "reported machines, at 26 pictures a minute") for each in INSTANCES]
    if (measured := LADDER.stored()) is None:
        return found
    # The machine here has no price of its own: its share of the reported CPU machine's is taken.
    price = INSTANCES[0].dollars_per_hour * int(measured.machine.split()[0]) / REPORTED_CPUS
    for row in LADDER.summary(measured.rows):
        if (name := SETUPS.get(row["step"])) and "error" not in row:
            here = Instance(name, price, row["requests_per_s"])
            found += [_row(here, busy * row["requests_per_s"], f"here, {busy:.0%} busy") for busy in BUSY]
    return found


def _row(instance: Instance, traffic: float, where: str) -> Row:
    cost = asdict(instance.cost(traffic, FULL))
    return {"where": where, "traffic": traffic, **cost.pop("instance"), **cost}


def compare_costs(rows: Rows) -> Mapping[str, str]:
    """Check the reported sums by arithmetic."""
    cpu, small, gpu = (row["per_million"] for row in rows[: len(INSTANCES)])
    told = {each.subject: each.value or 0.0 for each in of("cost")}
    year = told["price of a GPU machine"] * HOURS_A_YEAR * told["GPUs saved in each of two countries"] * 2
    return {
        "saving of the accelerator against the CPU machine": f"{100 * (1 - small / cpu):.0f} %",
        "price of the GPU machine, in prices of the accelerator machine": f"{gpu / small:.1f} times",
        "saved in a year, about": f"${year:,.0f} = 1.306 x 24 x 365 x 15 x 2",
    }


COST = declared(
    "cost",
    parts=lambda _: [Part("all", costs)],
    ours=lambda row: "here" in row["where"],
    tabled=lambda rows: side_by_side(rows, "where", "name", "dollars_per_hour", "requests_per_s"),
    computed=compare_costs,
)
