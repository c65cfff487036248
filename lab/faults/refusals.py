"""Sends a server more than it can answer, and reports what became of the requests.

    ensemble faults refusals                 # every kind, four minutes
    ensemble faults refusals obeying --markdown refusals.md

Each kind starts a server of its own: all nodes in one process, with models of ImageNet's size. Before and after the
overload, 32 clients measure its highest rate. The report divides the overloaded server's rate by the mean of both.
Answers after a load's end do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import Records, between, latency_ms, ok, outcomes, quantile
from ensemble_models.options import POSITIVE, Command, file_options, option
from ensemble_serving.transports import Response
from lab.benchmark.systems import HTTP_PORT, OURS, running
from lab.benchmark.workloads import changed, workload
from lab.faults.campaign import Done, fault_argument, parts, report
from lab.rows import Row, Rows

BEST_CLIENTS, BEST_S = 32, 8.0
TIMES = 3.0
REFUSED = 503
COLUMNS = (
    "load {what} | answers/s {rate:,.0f} | of the best {share:.2f} | refused {refused:,} | "
    "otherwise failed {failed:,} | p99, ms {p99_ms:,.0f} | "
    "memory {growth_mb:+,.0f} MB"
)


class Obeying(Closed):
    """Clients that send a refused request again after the time in the refusal."""

    async def rest(self, response: Response | None) -> bool:
        """See `Closed.rest`."""
        if response is None or response.retry_after_s is None:
            return await super().rest(response)
        await asyncio.sleep(response.retry_after_s)
        return True


@dataclass(frozen=True)
class Load(Done):
    """A kind of overload: how it is sent, by the best rate, and settings of the ingress; see `Done`."""

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
        lambda _: Obeying(200),
        {"max_in_flight": 64},
    ),
)


def sent(images: Sequence[bytes], mode: Mode, seconds: float) -> tuple[Records, float]:
    """Send a load; return what became of its requests, and the answers per second until its end."""
    target = Target(f"http://127.0.0.1:{HTTP_PORT}", Classify(), tuple(images))
    with Generator(target, mode) as generator:
        generator.run(seconds)
    found = generator.records()
    in_time = between(found, "done", generator.began, generator.began + seconds)
    return found, float(np.count_nonzero(ok(in_time))) / seconds


def measure(load: Load, seconds: float) -> Rows:
    """Measure what becomes of a load; raise ScriptError if the server does not start."""
    served = workload("imagenet", "int8")
    images = [path.read_bytes() for path in served.images]
    with running(OURS["colocated"], served, changed({"ingress": load.ingress})) as server:
        _, best = sent(images, Obeying(BEST_CLIENTS), BEST_S)
        before = server.resident_mb()
        found, rate = sent(images, load.mode(best), seconds)
        growth = server.resident_mb() - before
        best = (best + sent(images, Obeying(BEST_CLIENTS), BEST_S)[1]) / 2
    return [result(found, rate, best, growth)]


def result(found: Records, rate: float, best: float, growth_mb: float) -> Row:
    """Summarize a load, by its requests, its rate of answers, the best rate, and the memory that it took.

    The `others` are the statuses of failures but 503.
    """
    others = found[~ok(found) & (found["status"] != REFUSED)]
    return {
        "rate": rate,
        "share": rate / best,
        "refused": int(np.count_nonzero(found["status"] == REFUSED)),
        "failed": len(others),
        "others": outcomes(others),
        "p99_ms": quantile(latency_ms(found[ok(found)]), 99),
        "growth_mb": growth_mb,
    }


def note(row: Row) -> str:
    """Tell what else than a refusal requests were answered."""
    told = ", ".join(f"{count:,} with {status}" for status, count in row["others"].items())
    return f"otherwise failed of {row['what']}: {told}" if told else ""


@click.command("faults refusals", cls=Command, help=__doc__)
@fault_argument("load", LOADS)
@option("--seconds", type=POSITIVE, default=30, help="Seconds of each load.")
@file_options("json", "markdown")
def main(names: Sequence[str], seconds: int, **files: Path | None) -> None:
    """Send each load."""
    measured = partial(measure, seconds=seconds)
    report(parts("load", LOADS, names, measured), COLUMNS, files, note=note)
