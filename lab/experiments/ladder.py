"""From plain Ray Serve, as it comes and as its documentation tunes it, to this application, a measure at a time.

Every step of this application keeps those above it. All get the same images from the same clients over HTTP. The
columns are Locust's. Accuracy is measured on all labelled images, by the server's own decoding, prediction and
combination.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from deployments.repository.repository import DEFAULT_ROOT, find
from ensemble_capacity.load.load import Closed
from ensemble_models.dataset import Dataset, sample
from ensemble_models.ensembles import Members
from ensemble_models.tune_cascade import members_of
from lab.benchmark.systems import OURS, named, running
from lab.benchmark.workloads import MEMBERS, Placement, Precision, Workload, changed, workload
from lab.experiments.experiment import Here, declared, labelled
from lab.rows import Part, Row, Rows
from scripts.errors import ScriptError

CLIENTS, ROUNDS, EXIT_AT = 32, 3, 0.7
# So many of the labelled images are sent.
SENT = 1000
STUDENT = "student"
# What Serve's documentation has for throughput; `ensemble serve` turns the first one on by itself.
TUNED = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}


@dataclass(frozen=True)
class Step:
    """A server to measure.

    Attributes:
        name: for the table.
        peer: the name of another server of the benchmark; None for this application, which the others are about.
        placement: of the nodes.
        precision: of the members.
        front: who takes requests: Serve's own HAProxy, or this application's.
        edges: how separate nodes are called.
        batch: the most images of a batch; None for the default.
        members: whose answers are combined.
        exit_at: of a cascade of them, in their order; None to ask all members of every image.
        environment: switches of Serve for a peer.
        times: how much longer than others it is loaded, so that enough requests are answered.
    """

    name: str
    peer: str | None = None
    placement: Placement = "separate"
    precision: Precision = "float32"
    front: str = "direct"
    edges: str = "direct"
    batch: int | None = None
    members: tuple[str, ...] = MEMBERS
    exit_at: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    times: int = 1

    @property
    def switches(self) -> Mapping[str, str]:
        """Its switches of Serve."""
        return TUNED if self.peer is None and self.front == "serve" else self.environment

    def edit(self, config: dict[str, Any]) -> None:
        """Change a Serve config of this application, so that it serves this, with one replica of each node."""
        own: dict[str, Any] = {"front": self.front, "edges": self.edges}
        if self.exit_at is not None:
            own["ensemble"] = {"quorum": 1, "cascade": {"order": list(self.members), "exit_at": [self.exit_at]}}
        if self.batch is not None:
            own["ingress"] = {"max_batch_size": self.batch, "max_concurrent_batches": 32 // self.batch}
        if self.members != MEMBERS:
            [first, *_] = config["applications"][0]["args"]["members"]
            own["members"] = [{**first, "name": name} for name in self.members]
        changed(own, deployment={"autoscaling_config": None, "num_replicas": 1})(config)

    def measured(self, images: Images, seconds: float) -> Iterator[Row]:
        """Serve and load it. Raises ScriptError if it did not start, or answered nothing."""
        load, predicted = images.load(self.precision)
        system = OURS[self.placement] if self.peer is None else named([self.peer])[0]
        with running(system, load, self.edit, self.switches) as server:
            row = server.row(load, "http", Closed(CLIENTS), seconds * self.times)
        if not row.requests:
            raise ScriptError(f"no request was answered: {row.first_error}")
        yield {
            "requests": row.requests,
            "failed": row.failed,
            "first_error": row.first_error,
            "median_ms": row.percentiles_ms["p50"],
            "average_ms": row.mean_ms,
            "min_ms": row.min_ms,
            "max_ms": row.max_ms,
            "requests_per_s": row.requests_per_s,
            **self.accuracy(predicted),
        }

    def accuracy(self, predicted: Members) -> Row:
        """Compute its top-1, and the share of images that a cascade answers before its last member, percent."""
        if self.exit_at is None:
            answers, exits = predicted.combined(self.members).argmax(axis=1), None
        else:
            walk = predicted.walk(self.members, [self.exit_at])
            answers, exits = walk.answers, 100 * sum(walk.stops[:-1])
        return {"top1": 100 * float((answers == predicted.labels).mean()), "exits": exits}


def ladder() -> list[Step]:
    """List the steps, from the foot."""
    plain = [
        Step("plain Ray Serve as it comes", "chain-untuned", times=6),
        Step("plain Ray Serve, one thread per model, and its documentation's switches", "chain", environment=TUNED),
    ]
    nodes = Step("this application behind Serve's HAProxy, one image at a time", front="serve", edges="handle", batch=1)
    found = [nodes]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("batches", {"batch": None}),
        ("direct edges", {"edges": "direct"}),
        ("int8", {"precision": "int8"}),
        ("one process", {"placement": "colocated"}),
        ("its own front instead of Serve's HAProxy", {"front": "direct"}),
        (f"a cascade that ends at {EXIT_AT:g}", {"exit_at": EXIT_AT}),
        ("the student alone", {"members": (STUDENT,), "exit_at": None}),
    ]
    for name, change in changes:
        found.append(replace(found[-1], name=name, **change))
    return plain + found


class Images:
    """The labelled images, the images to send, and the members' predictions; each is made when it is first read."""

    def __init__(self, dataset: Dataset) -> None:
        """Set the labelled images."""
        self.dataset = dataset
        self._folder = tempfile.TemporaryDirectory()

    @cache  # noqa: B019 - as long as the experiment.
    def _sent(self) -> tuple[Path, ...]:
        some = sample(self.dataset, SENT)
        sent = tuple(Path(self._folder.name) / f"{number:04}.jpg" for number in range(len(some)))
        for path, (encoded, _) in zip(sent, some.read(), strict=True):
            path.write_bytes(encoded)
        return sent

    @cache  # noqa: B019
    def load(self, precision: Precision) -> tuple[Workload, Members]:
        """Return the workload in a precision, and the members' predictions.

        Raises ScriptError if an image or a model can't be read.
        """
        load = replace(workload("embedded", precision), images=self._sent())
        models = [find(DEFAULT_ROOT, name, load.version) for name in (*MEMBERS, STUDENT)]
        return load, members_of(models, (), self.dataset, "mean")


def parts(seconds: float) -> Sequence[Part]:
    """Make each step a part."""
    images = Images(labelled())
    return [Part(step.name, partial(step.measured, images, seconds), {"step": step.name}) for step in ladder()]


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


def compare(rows: Rows) -> Mapping[str, Here]:
    """Put the foot and the top of the ladder beside each of the reported ones."""
    found = {}
    for end, row in (("first", rows[0]), ("last", rows[-1])):
        if rate := row.get("requests_per_s"):
            for what in ("food", "image scoring", "receipts"):
                found[f"{what}, {end}"] = Here(rate, f"{rate:.1f} requests/s")
    return found


LADDER = declared(
    "ladder",
    check=labelled,
    parts=parts,
    ours=lambda row: not row["step"].startswith("plain"),
    shown=shown,
    notes=notes,
    compare=compare,
)
