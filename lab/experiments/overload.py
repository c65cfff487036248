"""Sends more than all members together can answer, and shows what becomes of it, second by second.

    ensemble experiments overload --data test.zip --markdown overload.md --plot overload.svg

One process with the bundled models serves both members, then a cascade of them, then cascades whose thresholds fall
under load: that one, and one with the student before the two. The first one's capacity is the best of three
measurements with 32 clients; each is then sent `--times` as many labelled images, at random times, whatever comes back.
Afterwards it is measured again, since a shared machine may by then be a faster or a slower one. `--plot` needs the
`plot` extra (Matplotlib).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, SHED, Records, between, latency_ms, ok, quantile
from lab.benchmark.systems import HTTP_PORT, VARIANTS, Running, running
from lab.benchmark.workloads import Workload, workload
from scripts.dataset import Dataset, default_data
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.results import Table, add_files, check_files, drawing, write_files
from scripts.serve.environment import set_up

# The thresholds in force under load: nobody asks the DenseNet, and most images stop at the student, if it is there.
AT_THE_RESNET, AFTER_THE_STUDENT = [0.0], [0.6, 0.0]
QUEUES = {"from_queue_ms": 100, "until_queue_ms": 20}
# For every setup: what a batch costs beside its images is shared by more of them when many wait.
LARGEST_BATCH = 64
CLIENTS, CAPACITY_S, CAPACITY_ROUNDS, AFTER_S = 32, 8.0, 3, 5.0
REFUSED = 503
HEADINGS = (
    "one process with",
    "sent",
    "refused",
    "failed",
    "p50, ms",
    "p99, ms",
    "top-1, %",
    "load-shed",
    "load-shed until, s",
)


Edit = Callable[[dict[str, Any]], None]


def _large_batches(config: dict[str, Any]) -> None:
    config["applications"][0]["args"].setdefault("ingress", {})["max_batch_size"] = LARGEST_BATCH


def _under_load(exit_at: Sequence[float]) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        _large_batches(config)
        config["applications"][0]["args"]["ensemble"]["under_load"] = {"exit_at": exit_at, **QUEUES}

    return edit


FULL = "both members"
SETUPS = {
    FULL: (VARIANTS["colocated"], _large_batches),
    "the cascade": (VARIANTS["cascade"], _large_batches),
    "the cascade, and thresholds for load": (VARIANTS["cascade"], _under_load(AT_THE_RESNET)),
    "the student first, and thresholds for load": (VARIANTS["student"], _under_load(AFTER_THE_STUDENT)),
}


@dataclass(frozen=True)
class Measured:
    """What was sent, and what came back.

    Attributes:
        before: what both members answered before the load, images a second.
        after: the same, when every setup had been loaded.
        rate: what was sent, images a second.
        results: what `overloaded` reports of each setup.
    """

    before: float
    after: float
    rate: float
    results: Mapping[str, dict[str, Any]]


def measure(dataset: Dataset, times: float, seconds: float) -> Measured:
    """Load each setup, one after the other.

    Raises:
        ScriptError: an image can't be read, or a server did not start.
    """
    load, images = workload("embedded", "int8"), list(dataset.read())
    results: dict[str, dict[str, Any]] = {}
    before = after = 0.0
    for name in tqdm([*SETUPS, None], unit="server"):
        system, edit = SETUPS[name or FULL]
        with running(system, load, edit) as server:
            if name is None:
                after = _capacity(server, load)
                continue
            before = before or _capacity(server, load)
            results[name] = overloaded(images, times * before, seconds)
    return Measured(before, after, times * before, results)


def overloaded(images: Sequence[tuple[bytes, str]], rate: float, seconds: float) -> dict[str, Any]:
    """What becomes of labelled images that are sent at a rate for a time, and of single ones afterwards."""
    encoded, labels = zip(*images, strict=True)
    target = Target(f"http://127.0.0.1:{HTTP_PORT}", Classify(), encoded, labels)

    def sent(mode: Mode, seconds: float) -> tuple[Records, float]:
        with Generator(target, mode) as generator:
            generator.run(seconds)
        return generator.records(), generator.began

    load, began = sent(Arrivals(rate), seconds)
    single, _ = sent(Closed(1), AFTER_S)
    return {
        **summary(load),
        "eased_until_s": round(max([0.0, *(shed(load) - began - seconds), *(shed(single) - began - seconds)]), 3),
        "after": summary(single),
        "by_second": [summary(between(load, "due", began + n, began + n + 1)) for n in range(int(seconds))],
    }


def shed(found: Records) -> Any:
    """When answers came that fewer members were asked for because of the load, seconds, [N]."""
    return found["done"][ok(found) & (found["flags"] & SHED > 0)]


def summary(found: Records) -> dict[str, Any]:
    """What became of requests."""
    well = found[ok(found)]
    refused = int(np.count_nonzero(found["status"] == REFUSED))
    p50, p99 = (round(quantile(latency_ms(well), percent), 1) if len(well) else None for percent in (50, 99))
    return {
        "sent": len(found),
        "answered": len(well),
        "refused": refused,
        "failed": len(found) - len(well) - refused,
        "p50_ms": p50,
        "p99_ms": p99,
        "top1": round(100 * np.count_nonzero(well["flags"] & RIGHT) / max(1, len(well)), 2),
        "eased": round(np.count_nonzero(well["flags"] & SHED) / max(1, len(well)), 4),
    }


def _capacity(server: Running, load: Workload) -> float:
    """The images that a server answers in a second: the best of some rounds, since other work only takes from it."""
    rounds = (server.load(load, "http", CLIENTS, CAPACITY_S)["requests_per_s"] for _ in range(CAPACITY_ROUNDS))
    return max(map(float, rounds))


def cells(name: str, result: Mapping[str, Any]) -> list[str]:
    """A line of the table."""
    counts = [f"{result[key]:,}" for key in ("sent", "refused", "failed")]
    times = ["" if result[key] is None else f"{result[key]:,.0f}" for key in ("p50_ms", "p99_ms")]
    eased = [f"{100 * result['eased']:.1f} %", f"{result['eased_until_s']:.1f}"]
    return [name, *counts, *times, f"{result['top1']:.2f}", *eased]


def plot(measured: Measured, path: Path) -> None:
    """What was answered and how late, by the second; PNG or SVG by the file's name."""
    with drawing(path, (8, 7), rows=3) as [answers, latency, eased]:
        for name, result in measured.results.items():
            seconds = result["by_second"]
            answers.plot([each["answered"] for each in seconds], label=name)
            latency.plot([each["p99_ms"] for each in seconds])
            eased.plot([100 * each["eased"] for each in seconds])
        answers.axhline(measured.rate, linestyle=":", color="grey", label="sent, on average")
        answers.set_ylabel("answers to the images\nof a second")
        answers.set_ylim(bottom=0)
        answers.legend(frameon=False, ncols=2, loc="lower left")
        latency.set_ylabel("99th percentile of\nthe latency, ms")
        latency.set_yscale("log")
        eased.set_ylabel("load-shed answers, %")
        eased.set_xlabel("seconds")


def report(measured: Measured, args: argparse.Namespace) -> None:
    """Print what came back, and write the files that were asked for."""
    title = (
        f"{measured.rate:.0f} images a second, {args.times:g} times what both members answer: "
        f"{measured.before:.0f} a second before the load, {measured.after:.0f} after it"
    )
    table = Table(HEADINGS, [cells(name, result) for name, result in measured.results.items()], title=title)
    table.show()
    capacity = {"rate": measured.rate, "answered_before": measured.before, "answered_after": measured.after}
    write_files(args, table, {**capacity, **measured.results}, lambda path: plot(measured, path))


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, send and report."""
    parser = described(__doc__, "ensemble experiments overload")
    parser.add_argument("--data", type=Path, default=default_data(), metavar="PATH", help="<class>/*.jpg, or zip")
    parser.add_argument("--times", type=float, default=1.5, help="what both members answer; default: %(default)s")
    parser.add_argument("--seconds", type=positive, default=60, help="of load, for each server; default: %(default)s")
    add_files(parser)
    args = parser.parse_args(arguments)
    if args.data is None:
        parser.error("name the images by --data")
    if args.times <= 0:
        parser.error("--times must be above 0")
    check_files(parser, args)
    with errors_in_one_line():
        set_up()
        report(measure(Dataset.open(args.data), args.times, args.seconds), args)
