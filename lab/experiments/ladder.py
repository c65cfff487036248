"""Adds one measure after the other to an ensemble on plain Ray Serve, and shows what each gives, or takes.

Every step keeps those above it. All get the same stream of images from the same clients over HTTP, of which a share was
sent before, so that the cache has something to find. The columns are Locust's; accuracy is that of all labelled images,
by the server's own decoding, prediction and combination.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from deployments.cpus import available_cpus
from deployments.repository.repository import DEFAULT_ROOT, find
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.measure import Row
from lab.benchmark.systems import OURS, System, named, running
from lab.benchmark.workloads import MEMBERS, Placement, Precision, Workload, workload
from lab.experiments.cascade import Setup, files
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows
from lab.pictures.chart import Bar
from scripts.dataset import Dataset, default_data
from scripts.errors import ScriptError
from scripts.evaluate.ensembles import Members
from scripts.results import Table
from scripts.tune_cascade.__main__ import members_of

HEADINGS = (
    "step",
    "requests",
    "failures",
    "median, ms",
    "average, ms",
    "min, ms",
    "max, ms",
    "requests/s",
    "times the step before",
    "top-1, %",
)
CLIENTS, REPEATS = 32, 0.3
# What Serve does by itself; `ensemble serve` turns its throughput mode on.
SLOW = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"}


@dataclass(frozen=True)
class Step:
    """What is served.

    Attributes:
        name: for the table.
        peer: the name of another server of the benchmark; None for this application, which the others are about.
        placement: of the nodes.
        precision: of the members.
        front: who takes requests.
        edges: how separate nodes are called.
        batch: the most images of a batch; None for the default.
        threads: of a member; None for its share of the cores.
        exit_at: the threshold of a cascade; None for none.
        cache: whether there is one.
        environment: switches of Serve.
    """

    name: str
    peer: str | None = None
    placement: Placement = "separate"
    precision: Precision = "float32"
    front: str = "direct"
    edges: str = "direct"
    batch: int | None = None
    threads: int | None = None
    exit_at: float | None = None
    cache: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def system(self) -> System:
        """As the benchmark starts it."""
        return OURS[self.placement] if self.peer is None else named([self.peer])[0]

    def edit(self, config: dict[str, Any]) -> None:
        """Change a Serve config of this application, so that it serves this, with one replica of each node."""
        application = config["applications"][0]
        own = application["args"]
        own.update(front=self.front, edges=self.edges)
        for member in own["members"]:
            member["threads"] = self.threads
        if self.batch is not None:
            own["ingress"] = {"max_batch_size": self.batch, "max_concurrent_batches": 32 // self.batch}
        if self.exit_at is not None:
            own["ensemble"]["cascade"] = {"order": list(MEMBERS), "exit_at": [self.exit_at]}
        if self.cache:
            own["cache"] = {"max_bytes": "64MiB"}
        for deployment in application["deployments"]:
            deployment.pop("autoscaling_config", None)
            deployment["num_replicas"] = 1


def steps() -> list[Step]:
    """The ladder, from its foot."""
    plain = Step("plain Ray Serve, a deployment per step", peer="chain-untuned")
    nodes = Step(
        "this application's nodes, one image at a time",
        front="serve",
        edges="handle",
        batch=1,
        threads=available_cpus(),
        environment=SLOW,
    )
    found = [plain, nodes]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("batching", {"batch": None}),
        ("Serve's throughput mode", {"environment": {}}),
        ("direct edges", {"edges": "direct"}),
        ("int8", {"precision": "int8"}),
        ("matched threads", {"threads": None}),
        ("one process", {"placement": "colocated"}),
        ("the ingress itself in front", {"front": "direct"}),
        ("a cascade", {"exit_at": 0.9295}),
        ("a cache", {"cache": True}),
    ]
    for name, change in changes:
        found.append(replace(found[-1], name=name, **change))
    return found


def record(row: Row, top1: float) -> dict[str, Any]:
    """What is stored of a step."""
    return {
        "requests": row.requests,
        "failures": row.failed,
        "first_error": row.first_error,
        "median_ms": row.percentiles_ms["p50"],
        "average_ms": row.mean_ms,
        "min_ms": row.min_ms,
        "max_ms": row.max_ms,
        "requests_per_s": row.requests_per_s,
        "top1": top1,
    }


def table(records: Sequence[Mapping[str, Any]]) -> Table:
    """What was stored, by its texts."""
    lines, notes, before = [], [], None
    for each in records:
        if "error" in each:
            lines.append([each["step"], *["not measured"] * (len(HEADINGS) - 1)])
            notes.append(f"{each['step']}: {each['error']}")
            continue
        if each["failures"]:
            notes.append(f"{each['step']}: the first failure was {each['first_error']!r}.")
        rate = each["requests_per_s"]
        milliseconds = [f"{each[name]:.1f}" for name in ("median_ms", "average_ms", "min_ms", "max_ms")]
        times = "" if before is None else f"{rate / before:.2f}"
        counts = [f"{each['requests']:,}", f"{each['failures']:,}"]
        lines.append([each["step"], *counts, *milliseconds, f"{rate:.1f}", times, f"{each['top1']:.2f}"])
        before = rate
    return Table(HEADINGS, lines, notes=notes)


class Stream:
    """The images that every step is sent, and what the members answer to all; made when the first step wants it."""

    def __init__(self, dataset: Dataset) -> None:
        """Set the labelled images."""
        self._dataset = dataset
        self._folder = tempfile.TemporaryDirectory()

    @cached_property
    def _sent(self) -> tuple[Path, ...]:
        """The files of those that are sent."""
        return files(self._dataset, Path(self._folder.name))

    @cache  # noqa: B019 - as long as the experiment.
    def load(self, precision: Precision) -> tuple[Workload, Members]:
        """What is served and sent in a precision, and the members' answers.

        Raises:
            ScriptError: an image or a model can't be read.
        """
        load = replace(workload("embedded", precision), images=self._sent, repeats=REPEATS)
        models = [find(DEFAULT_ROOT, name, load.version) for name in MEMBERS]
        return load, members_of(models, (), self._dataset, "mean")

    def measured(self, step: Step, seconds: float) -> Iterator[dict[str, Any]]:
        """Serve and load a step.

        Raises:
            ScriptError: it did not start, or answered nothing.
        """
        load, said = self.load(step.precision)
        with running(step.system, load, step.edit, step.environment) as server:
            row = server.row(load, "http", Closed(CLIENTS), seconds)
        if not row.requests:
            raise ScriptError(f"no request was answered: {row.first_error}")
        yield record(row, Setup(MEMBERS, step.precision, step.exit_at).answers(said)[0].mean)


def parts(chosen: Sequence[Step], seconds: float) -> Sequence[Part]:
    """Each step is a part."""
    stream = Stream(labelled())
    return [Part(step.name, partial(stream.measured, step, seconds), {"step": step.name}) for step in chosen]


def labelled() -> Dataset:
    """The images; raises ScriptError if there are none."""
    if (data := default_data()) is None:
        raise ScriptError("set ENSEMBLE_DATA to a folder with cifar10/test.zip")
    return Dataset.open(data)


def check() -> None:
    """Raise ScriptError if the images are missing."""
    labelled()


def measure(seconds: float) -> Sequence[Part]:
    """Serve and load each step of the ladder."""
    return parts(steps(), seconds)


def compare(rows: Rows) -> Mapping[str, Here]:
    """The foot and the top of the ladder, beside each of the reported ones."""
    differs = "models of 32x32, two cores, 32 clients; the reported ladders' steps and models are not recorded"
    found = {}
    for end, position in (("first", 0), ("last", -1)):
        if rate := rows[position].get("requests_per_s"):
            for number in ("first", "second", "third"):
                found[f"{end} rate of the {number} ladder"] = Here(rate, f"{rate:.1f} requests/s", differs)
    return found


def picture(rows: Rows) -> Groups:
    """The rate of each step."""
    rates = [row for row in rows if "error" not in row]
    return [("", [Bar(each["step"], each["requests_per_s"], f"{each['requests_per_s']:.1f}") for each in rates])]


IMAGES = (
    f"CIFAR-10's test images, 32x32, {REPEATS:.0%} of the requests with one sent before, {CLIENTS} clients over HTTP"
)
LADDER = Experiment(
    "ladder",
    "Requests per second, step by step; more is better",
    IMAGES,
    check,
    measure,
    table,
    compare,
    picture,
    seconds=6.0,
)
