"""Accuracy against throughput: each member alone, both of them, and cascades of them, in float32 and int8.

Accuracy is measured on the labelled images, by the server's own decoding, prediction and combination, with its 95 %
interval. Throughput is measured on a server of one process, to which clients on the same machine send the same images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from ensemble_models.ensembles import Members
from ensemble_models.statistics import Interval
from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import MEMBERS, Precision
from lab.experiments.experiment import Bars, Experiment, labelled
from lab.experiments.ladder import Images
from lab.rows import Part, Row

EXIT_AT, CLIENTS, ROUNDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.97), 32, 3
FIGURES = ("requests_per_s", "cpu_ms")


@dataclass(frozen=True)
class Setup:
    """What is served.

    Attributes:
        members: in the order in which they are asked.
        precision: of all of them.
        exit_at: of a cascade, the threshold of every member but the last; None to ask all members of every image.
    """

    members: tuple[str, ...]
    precision: Precision
    exit_at: float | None = None

    @property
    def name(self) -> str:
        """The setup for people."""
        if self.exit_at is not None:
            return f"{' then '.join(self.members)}, exit at {self.exit_at:g}"
        return " and ".join(self.members)

    def edit(self, config: dict[str, Any]) -> None:
        """Change a Serve config so that it serves this."""
        args = config["applications"][0]["args"]
        by_name = {member["name"]: member for member in args["members"]}
        args["members"] = [by_name[name] for name in self.members]
        args["ensemble"] = {"quorum": 1}
        if self.exit_at is not None:
            stages = [self.exit_at] * (len(self.members) - 1)
            args["ensemble"]["cascade"] = {"order": list(self.members), "exit_at": stages}

    def answers(self, predicted: Members) -> Row:
        """Measure its accuracy, and the share of images that a cascade answers before its last member, percent."""
        if self.exit_at is None:
            answers, exits = predicted.combined(self.members).argmax(axis=1), None
        else:
            walk = predicted.walk(self.members, [self.exit_at] * (len(self.members) - 1))
            answers, exits = walk.answers, 100 * sum(walk.stops[:-1])
        top1 = Interval.share(answers == predicted.labels)
        return {"exits": exits, "top1": top1.mean, "low": top1.low, "high": top1.high}

    def measured(self, images: Images, seconds: float) -> Iterator[Row]:
        """Serve and load it."""
        load, predicted = images.load(self.precision)
        with running(OURS["colocated"], load, self.edit) as server:
            found = server.load(load, "http", CLIENTS, seconds)
        rates = {name: found[name] for name in ("requests", "requests_per_s")}
        yield {**self.answers(predicted), **rates, "cpu_ms": found["server_cpu_ms_per_request"]}


def setups() -> list[Setup]:
    """Give each member, both of them, and a cascade for each threshold, in each precision."""
    found = []
    for precision in get_args(Precision):
        found += [Setup((name,), precision) for name in MEMBERS]
        found += [Setup(MEMBERS, precision), *(Setup(MEMBERS, precision, threshold) for threshold in EXIT_AT)]
    return found


def parts(seconds: float) -> Sequence[Part]:
    """Make each setup a part."""
    images = Images(labelled())
    return [
        Part(
            f"{each.name}, {each.precision}",
            partial(each.measured, images, seconds),
            {"setup": each.name, "precision": each.precision},
        )
        for each in setups()
    ]


ZOO = Experiment(
    name="zoo",
    title="Requests per second, with the top-1 accuracy; cascades are coloured; more is better",
    setting=f"CIFAR-10's test images, 32x32, {CLIENTS} clients over HTTP, one process, {ROUNDS} rounds",
    check=labelled,
    parts=parts,
    columns="setup {setup} | precision {precision} | exits, % {exits:.1f} | top-1, % {top1:.2f} | "
    "95 % interval {low:.2f} to {high:.2f} | requests/s {requests_per_s:.0f} | "
    "CPU per request, ms {cpu_ms:.1f}",
    picture=Bars(
        "requests_per_s",
        "{setup}",
        "{requests_per_s:.0f}, top-1 {top1:.2f} %",
        "{precision}",
        lambda row: row["exits"] is not None,
    ),
    seconds=4.0,
    figures=FIGURES,
    rounds=ROUNDS,
)
