"""Predicts configurations that are drawn at random, then serves and loads each: how exact is `ensemble plan`?

    ensemble experiments planning --count 8 --json planning.json --markdown planning.md

A profile is measured first, or read by `--profile`. Each configuration is one placement with a batch size, a wait,
batches in flight and threads; it is asked by a closed loop and by an open loop at a share of what was predicted for it.
All predictions are made before the first server starts. The load generator computes on the server's cores.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from ensemble_capacity.plan.placements import placed, tuned
from tqdm import tqdm

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.measuring import measure
from ensemble_capacity.plan.prediction import Prediction, predict
from ensemble_capacity.plan.profile import Placement, Profile
from ensemble_capacity.plan.server import loaded, serving
from scripts import configuration
from scripts.errors import ScriptError, errors_in_one_line, positive
from scripts.flags import described
from scripts.results import Table, add_files, check_files, write_files
from scripts.shipped import shipped

SIZES, WAITS_MS, IN_FLIGHT, THREADS = (1, 2, 4, 8, 16, 32), (0.0, 0.0, 2.0, 5.0), (1, 1, 2, 3), (1, 1, 2)
CLIENTS, SHARES = (1, 2, 4, 8, 16, 32), (0.3, 0.5, 0.7, 0.85)
# Of a hundred requests per second the ten slowest then decide the p99.
SECONDS = 10.0
PLACEMENTS: tuple[Placement, ...] = ("inline", "inline", "separate")
HEADINGS = (
    "configuration",
    "load",
    "requests/s",
    "predicted",
    "error, %",
    "p50, ms",
    "predicted",
    "error, %",
    "p99, ms",
    "predicted",
    "error, %",
)


@dataclass(frozen=True)
class Case:
    """A configuration and a load.

    Attributes:
        name: the configuration in words.
        config: for a server.
        load: of it.
        predicted: what the simulation says.
    """

    name: str
    config: dict[str, Any]
    load: Closed | Arrivals
    predicted: Prediction


@dataclass(frozen=True)
class Compared:
    """What was predicted and what was measured; `error` is the former's, a share of the latter."""

    name: str
    load: str
    closed: bool
    predicted: dict[str, float]
    measured: dict[str, float]

    def error(self, figure: str) -> float:
        """Of a figure, signed."""
        return self.predicted[figure] / self.measured[figure] - 1

    @property
    def cells(self) -> list[str]:
        """Its line in the table."""
        texts = [self.name, self.load]
        for figure, digits in (("requests_per_s", 0), ("p50_ms", 1), ("p99_ms", 1)):
            values = (self.measured[figure], self.predicted[figure])
            texts += [*(f"{value:.{digits}f}" for value in values), f"{100 * self.error(figure):+.0f}"]
        return texts


def drawn(config: Mapping[str, Any], profile: Profile, random: Random) -> list[Case]:
    """A configuration under two loads, with their predictions."""
    placement = random.choice(PLACEMENTS)
    size, wait, in_flight = random.choice(SIZES), random.choice(WAITS_MS), random.choice(IN_FLIGHT)
    threads = random.choice(THREADS)
    ingress = {"max_batch_size": size, "batch_wait_ms": wait, "max_concurrent_batches": in_flight}
    changed = tuned(placed(config, placement), threads=threads, ingress=ingress)
    name = f"{placement}, batch {size}, wait {wait:g} ms, {in_flight} in flight, threads {threads}"
    given = setting(next(configuration.ours(changed)))
    closed = Closed(random.choice(CLIENTS))
    most = predict(given, profile, Closed(max(CLIENTS)), clients_here=True).requests_per_s
    poisson = Arrivals(round(random.choice(SHARES) * most))
    return [Case(name, changed, load, predict(given, profile, load, clients_here=True)) for load in (closed, poisson)]


def measured(cases: Sequence[Case], photographs: Sequence[bytes]) -> list[Compared]:
    """Serve a configuration, and measure its loads.

    Raises:
        ScriptError: the server did not start.
    """
    found = []
    with serving(cases[0].config) as url:
        for case in cases:
            row = loaded(url, photographs, case.load, SECONDS)
            # CPU time per request is what other work on the machine changes least.
            figures = {
                "requests_per_s": row.requests_per_s,
                "p50_ms": row.percentiles_ms["p50"],
                "p99_ms": row.percentiles_ms["p99"],
                "cpu_ms": 1000 * row.per_request(sum(row.server.cpu_s.values())),
                "memory_mb": sum(row.server.memory_mb.values()),
            }
            names = ("requests_per_s", "p50_ms", "p99_ms", "memory_mb")
            said = {name: float(getattr(case.predicted, name)) for name in names}
            said["cpu_ms"] = 1000 * case.predicted.cpu / case.predicted.requests_per_s
            closed = isinstance(case.load, Closed)
            found.append(Compared(case.name, case.predicted.load, closed, said, figures))
    return found


def summary(found: Sequence[Compared]) -> list[str]:
    """The median and the worst error of each figure, in sentences."""
    lines = []
    names = {
        "requests_per_s": "throughput of closed loops",
        "p50_ms": "p50",
        "p99_ms": "p99",
        "cpu_ms": "CPU time per request",
        "memory_mb": "memory",
    }
    for figure, name in names.items():
        # An open loop is answered what it sends, which predicts nothing.
        counted = [each for each in found if each.closed or figure != "requests_per_s"]
        errors = [100 * abs(each.error(figure)) for each in counted]
        lines.append(f"{name}: the median error is {statistics.median(errors):.0f} %, the worst {max(errors):.0f} %.")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, predict, measure and report."""
    parser = described(__doc__, "ensemble experiments planning")
    parser.add_argument("--count", type=positive, default=8, help="configurations, under two loads each")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; default: %(default)s")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="read, or written if it is not there")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    with errors_in_one_line():
        config = configuration.read(shipped("configs/colocated.yaml"))
        photographs = [shipped("tests/cat.jpg").read_bytes()]
        if args.profile is not None and args.profile.exists():
            profile = profiles.read(args.profile)
        else:
            profile = measure(config, photographs)
            if args.profile is not None:
                profiles.write(profile, args.profile)
        random = Random(args.seed)
        cases = [drawn(config, profile, random) for _ in range(args.count)]
        found: list[Compared] = []
        for each in tqdm(cases, unit="server"):
            try:
                found += measured(each, photographs)
            except ScriptError as err:
                print(f"{each[0].name}: not measured: {err}", file=sys.stderr)
                continue
            # After each server, so that what was measured stays when a run is ended early.
            table = Table(HEADINGS, [case.cells for case in found], words=(0, 1), notes=summary(found))
            write_files(args, table, {"machine": profile.machine, "compared": [asdict(case) for case in found]})
    if not found:
        sys.exit("error: no configuration could be measured")
    table.show()
