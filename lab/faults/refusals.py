"""Sends a server more than it can answer, and reports what became of the requests.

    ensemble faults refusals                 # every kind, four minutes
    ensemble faults refusals obeying --markdown refusals.md

Each kind starts a server of its own, all nodes in one process with models of ImageNet's size, and loads it before and
after as far as it goes with 32 clients: the mean of both is the best, of which the overloaded server's rate is told as
a share. What is answered after a load's time is no part of its rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RETRY, Records, between, latency_ms, ok, outcomes, quantile
from ensemble_models.results import Table, add_files, check_files, write_files
from lab.benchmark.systems import HTTP_PORT, OURS, running
from lab.benchmark.workloads import workload
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.serve.environment import set_up

HEADINGS = ("load", "answers/s", "of the best", "refused", "otherwise failed", "p99, ms", "at first retry", "memory")
BEST_CLIENTS, BEST_S = 32, 8.0
TIMES = 3.0
REFUSED = 503


@dataclass(frozen=True)
class Load:
    """A kind of overload.

    Attributes:
        name: on the command line.
        what: as a sentence for the table.
        mode: how it is sent, where the best rate is so many requests per second.
        ingress: settings of the ingress that differ from the default.
    """

    name: str
    what: str
    mode: Callable[[float], Mode]
    ingress: dict[str, Any] = field(default_factory=dict)


LOADS = (
    Load("ignoring", "500 clients that ask again at once when they are refused", lambda _: Closed(500)),
    Load(
        "threefold",
        f"requests at {TIMES:.0f} times the best rate, whatever becomes of them",
        lambda best: Arrivals(TIMES * best),
    ),
    Load(
        "obeying",
        "200 clients that wait as long as `Retry-After` says; 64 images in flight",
        lambda _: Closed(200, obey=True),
        {"max_in_flight": 64},
    ),
)


@dataclass(frozen=True)
class Result:
    """What a load came to.

    Attributes:
        what: the load.
        rate: answers with 200, a second.
        share: of the best rate.
        refused: requests answered 503.
        failed: requests with any other answer, or none.
        others: those by status.
        p99_ms: the 99th percentile of the latency of those answered with 200, milliseconds.
        at_first_retry: the share of refused requests that were let in when they came again; NaN if none did.
        growth_mb: the server's memory after the load, above that before, megabytes.
    """

    what: str
    rate: float
    share: float
    refused: int
    failed: int
    others: dict[str, int]
    p99_ms: float
    at_first_retry: float
    growth_mb: float

    def cells(self) -> list[str]:
        """Format the result as a line of the table."""
        retried = "" if np.isnan(self.at_first_retry) else f"{self.at_first_retry:.1%}"
        numbers = [f"{self.rate:,.0f}", f"{self.share:.2f}", f"{self.refused:,}", f"{self.failed:,}"]
        return [self.what, *numbers, f"{self.p99_ms:,.0f}", retried, f"{self.growth_mb:+,.0f} MB"]


def sent(images: Sequence[bytes], mode: Mode, seconds: float) -> tuple[Records, float]:
    """Send a load; return what became of its requests, and the answers per second until its end."""
    target = Target(f"http://127.0.0.1:{HTTP_PORT}", Classify(), tuple(images))
    with Generator(target, mode) as generator:
        generator.run(seconds)
    found = generator.records()
    in_time = between(found, "done", generator.began, generator.began + seconds)
    return found, float(np.count_nonzero(ok(in_time))) / seconds


def measure(load: Load, seconds: float) -> Result:
    """Measure what becomes of a load; raise ScriptError if the server does not start."""
    served = workload("imagenet", "int8")
    images = [path.read_bytes() for path in served.images]

    def edit(config: dict[str, Any]) -> None:
        config["applications"][0]["args"].setdefault("ingress", {}).update(load.ingress)

    with running(OURS["colocated"], served, edit) as server:
        _, best = sent(images, Closed(BEST_CLIENTS, obey=True), BEST_S)
        before = server.resident_mb()
        found, rate = sent(images, load.mode(best), seconds)
        growth = server.resident_mb() - before
        best = (best + sent(images, Closed(BEST_CLIENTS, obey=True), BEST_S)[1]) / 2
    return result(load.what, found, rate, best, growth)


def result(what: str, found: Records, rate: float, best: float, growth_mb: float) -> Result:
    """Summarize a load.

    Args:
        what: the load.
        found: what became of its requests.
        rate: answers per second until its end.
        best: what the server answers otherwise.
        growth_mb: of the server's memory, megabytes.
    """
    others = found[~ok(found) & (found["status"] != REFUSED)]
    again = found[found["flags"] & RETRY > 0]
    return Result(
        what=what,
        rate=rate,
        share=rate / best,
        refused=int(np.count_nonzero(found["status"] == REFUSED)),
        failed=len(others),
        others=outcomes(others),
        p99_ms=quantile(latency_ms(found[ok(found)]), 99),
        at_first_retry=float(np.mean(ok(again))) if len(again) else float("nan"),
        growth_mb=growth_mb,
    )


def report(results: Sequence[Result], args: argparse.Namespace) -> None:
    """Print the results, and write the files that were asked for."""
    table = Table(HEADINGS, [result.cells() for result in results])
    table.show()
    for result in results:
        if result.others:
            told = ", ".join(f"{count:,} with {status}" for status, count in result.others.items())
            print(f"otherwise failed of {result.what}: {told}")
    write_files(args, table, [asdict(result) for result in results])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and measure."""
    names = [load.name for load in LOADS]
    parser = described(__doc__, "ensemble faults refusals")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--seconds", type=positive, default=30, help="how long each load lasts")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.loads if name not in names]:
        parser.error(f"there is no load {unknown[0]!r}; there are {', '.join(names)}")
    check_files(parser, args)
    with errors_in_one_line():
        set_up()
        chosen = [load for load in LOADS if load.name in (args.loads or names)]
        report([measure(load, args.seconds) for load in tqdm(chosen, unit="load")], args)
