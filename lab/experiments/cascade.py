"""Measures accuracy against throughput: each member alone, all of them, and cascades of them, in float32 and int8.

    ensemble experiments cascade --data test.zip --json zoo.json --markdown zoo.md

Accuracy is that of the labelled images, by the server's own decoding, prediction and combination, with its 95 %
interval. Throughput is that of a server of one process, which clients on the same machine send the same images to, over
HTTP; every round takes each setup in turn, and figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from deployments.repository.repository import DEFAULT_ROOT, find
from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import MEMBERS, Precision, Workload, workload
from scripts.dataset import Dataset, default_data
from scripts.errors import errors_in_one_line, positive
from scripts.evaluate.accuracy import sample
from scripts.evaluate.ensembles import Members
from scripts.flags import described
from scripts.interval import Interval
from scripts.results import Table, add_files, check_files, write_files
from scripts.serve.environment import set_up
from scripts.tune_cascade.__main__ import members_of

EXIT_AT = (0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
# Of the images, so many are sent: their shares of exits must be those of all.
SENT = 1000
HEADINGS = ("setup", "precision", "exits", "top-1, %", "95 % interval", "requests/s", "CPU per request, ms")


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
        """What the table calls it."""
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

    def answers(self, said: Members) -> tuple[Interval, float]:
        """Its accuracy, and the share of the images that are answered before the last member is asked, percent."""
        if self.exit_at is None:
            return Interval.share(said.combined(self.members).argmax(axis=1) == said.labels), 0.0
        walk = said.walk(self.members, [self.exit_at] * (len(self.members) - 1))
        return Interval.share(walk.answers == said.labels), 100 * sum(walk.stops[:-1])


@dataclass(frozen=True)
class Point:
    """A setup, and what was measured of it; medians over the rounds."""

    setup: Setup
    top1: Interval
    exits: float
    requests_per_s: float
    cpu_ms: float

    def cells(self) -> list[str]:
        """A line of the table."""
        exits = f"{self.exits:.1f} %" if self.setup.exit_at is not None else ""
        interval = f"{self.top1.low:.2f} to {self.top1.high:.2f}"
        numbers = [f"{self.top1.mean:.2f}", interval, f"{self.requests_per_s:.0f}", f"{self.cpu_ms:.1f}"]
        return [self.setup.name, self.setup.precision, exits, *numbers]


def setups(exit_at: Sequence[float]) -> list[Setup]:
    """Each member, all of them, and a cascade for each threshold, in each precision."""
    found = []
    for precision in get_args(Precision):
        found += [Setup((name,), precision) for name in MEMBERS]
        found += [Setup(MEMBERS, precision), *(Setup(MEMBERS, precision, threshold) for threshold in exit_at)]
    return found


def files(dataset: Dataset, folder: Path) -> tuple[Path, ...]:
    """Those images that are sent, each in a file of the folder."""
    some = sample(dataset, SENT)
    sent = tuple(folder / f"{number:04}.jpg" for number in range(len(some)))
    for path, (encoded, _) in zip(sent, some.read(), strict=True):
        path.write_bytes(encoded)
    return sent


def measure(
    chosen: Sequence[Setup], dataset: Dataset, sent: Sequence[Path], clients: int, seconds: float, rounds: int
) -> list[Point]:
    """Measure every setup.

    Args:
        chosen: the setups.
        dataset: labelled images, which accuracy is measured on.
        sent: those that the servers are asked about.
        clients: how many ask at a time.
        seconds: how long a server is asked in a round.
        rounds: how often each setup has its turn.

    Raises:
        ScriptError: an image or a model can't be read, or a server did not start.
    """
    served: dict[Precision, Workload] = {
        precision: replace(workload("embedded", precision), images=tuple(sent)) for precision in get_args(Precision)
    }
    said = {
        precision: members_of([find(DEFAULT_ROOT, name, load.version) for name in MEMBERS], (), dataset, "mean")
        for precision, load in served.items()
    }
    loads: dict[Setup, list[dict[str, float]]] = defaultdict(list)
    with tqdm(total=rounds * len(chosen), unit="server") as progress:
        for _ in range(rounds):
            for setup in chosen:
                progress.set_postfix_str(f"{setup.name}, {setup.precision}")
                load = served[setup.precision]
                with running(OURS["colocated"], load, setup.edit) as server:
                    loads[setup].append(server.load(load, "http", clients, seconds))
                progress.update()
    points = []
    for setup, samples in loads.items():
        top1, exits = setup.answers(said[setup.precision])
        rate, cpu_ms = (
            statistics.median(each[name] for each in samples)
            for name in ("requests_per_s", "server_cpu_ms_per_request")
        )
        points.append(Point(setup, top1, exits, rate, cpu_ms))
    return points


def report(points: Sequence[Point], args: argparse.Namespace) -> None:
    """Print the points, and write the files that were asked for."""
    table = Table(HEADINGS, [point.cells() for point in points], words=range(2))
    table.show()
    write_files(args, table, [asdict(point) for point in points])


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, measure and report."""
    parser = described(__doc__, "ensemble experiments cascade")
    parser.add_argument(
        "--data", type=Path, default=default_data(), metavar="PATH", help="<class>/*.jpg, folder or zip"
    )
    parser.add_argument("--exit-at", type=float, nargs="+", default=list(EXIT_AT), metavar="THRESHOLD")
    parser.add_argument("--clients", type=positive, default=32)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load, for each setup in each round")
    parser.add_argument("--rounds", type=positive, default=2)
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    if args.data is None:
        parser.error("name the images by --data")
    check_files(parser, args)
    with errors_in_one_line(), tempfile.TemporaryDirectory() as temporary:
        set_up()
        dataset = Dataset.open(args.data)
        sent = files(dataset, Path(temporary))
        report(measure(setups(args.exit_at), dataset, sent, args.clients, args.seconds, args.rounds), args)
