"""Sends more photographs than all members can answer: to all members, to a cascade, and to one that sheds load.

One process serves the members of configs/photographs.yaml: all of them, then their cascade, then that cascade with
thresholds that fall under load. The capacity of all members is the best of three measurements. Each server is sent
multiples of that capacity, at random times, whatever comes back. An answer counts as right if its label is the label
that all members give to the same photograph without load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, SHED, Records, latency_ms, ok, quantile
from ensemble_serving import Client
from lab.benchmark.systems import URLS, VARIANTS, Running, running
from lab.benchmark.workloads import Workload, changed, photograph_files, workload
from lab.experiments.experiment import declared
from lab.rows import Part, Row, Rows

TIMES = (1.5, 3.0)
# The thresholds in force under load: the first member answers alone.
AT_THE_FIRST = [0.0, 0.0]
QUEUES = {"from_queue_ms": 100, "until_queue_ms": 20}
CLIENTS, CAPACITY_S, CAPACITY_ROUNDS, AFTER_S = 32, 8.0, 3, 5.0
REFUSED = 503
FULL = "all members"
UNDER_LOAD = {"ensemble": {"under_load": {"exit_at": AT_THE_FIRST, **QUEUES}}}
SETUPS = {
    FULL: (VARIANTS["colocated"], changed()),
    "the cascade": (VARIANTS["cascade"], changed()),
    "the cascade, and thresholds for load": (VARIANTS["cascade"], changed(UNDER_LOAD)),
}


def every_setup(seconds: float) -> Iterator[Row]:
    """Load each setup, one after the other. Raises ScriptError if an image can't be read, or a server did not start."""
    load, sent = workload("photographs", "float32"), [path.read_bytes() for path in photograph_files()]
    capacity, labels = 0.0, list[str]()
    for name, (system, edit) in SETUPS.items():
        with running(system, load, edit) as server:
            labels = labels or asyncio.run(answered(sent))
            capacity = capacity or _capacity(server, load)
            for times in TIMES:
                found = overloaded(list(zip(sent, labels, strict=True)), times * capacity, seconds)
                yield {"setup": name, "times": times, "capacity": capacity, **found}


async def answered(images: Sequence[bytes]) -> list[str]:
    """Return the label of each photograph, from a server without other load."""
    async with Client(URLS["http"], concurrency=2) as client:
        return [answer.label for answer in await asyncio.gather(*map(client.classify, images))]


def overloaded(images: Sequence[tuple[bytes, str]], rate: float, seconds: float) -> Row:
    """Send labelled images at a rate for a time, and single ones afterwards, and tell what becomes of them."""
    encoded, labels = zip(*images, strict=True)
    target = Target(URLS["http"], Classify(), encoded, labels)

    def sent(mode: Mode, seconds: float) -> tuple[Records, float]:
        with Generator(target, mode) as generator:
            generator.run(seconds)
        return generator.records(), generator.began

    load, began = sent(Arrivals(rate), seconds)
    single, _ = sent(Closed(1), AFTER_S)
    shed_until = max([0.0, *(shed(load) - began - seconds), *(shed(single) - began - seconds)])
    return {**summary(load), "shed_until_s": round(shed_until, 3)}


def shed(found: Records) -> Any:
    """Find when answers came that fewer members were asked for because of the load, seconds, [N]."""
    return found["done"][ok(found) & (found["flags"] & SHED > 0)]


def summary(found: Records) -> Row:
    """Count what became of requests."""
    well = found[ok(found)]
    refused = int(np.count_nonzero(found["status"] == REFUSED))
    p50, p99 = (round(quantile(latency_ms(well), percent), 1) if len(well) else None for percent in (50, 99))
    return {
        "sent": len(found),
        "refused": refused,
        "failed": len(found) - len(well) - refused,
        "p50_ms": p50,
        "p99_ms": p99,
        "alike": round(100 * np.count_nonzero(well["flags"] & RIGHT) / max(1, len(well)), 2),
        "shed": round(100 * np.count_nonzero(well["flags"] & SHED) / max(1, len(well)), 1),
    }


def _capacity(server: Running, load: Workload) -> float:
    """Measure the images/s that a server answers: the best of some rounds, since other work only takes from it."""
    rounds = (server.load(load, "http", CLIENTS, CAPACITY_S)["requests_per_s"] for _ in range(CAPACITY_ROUNDS))
    return max(map(float, rounds))


def shown(rows: Rows) -> Rows:
    """Add the share that was refused."""
    return [{**row, "share": 100 * row["refused"] / row["sent"]} for row in rows]


OVERLOAD = declared(
    "overload",
    parts=lambda seconds: [Part("all", lambda: every_setup(seconds))],
    ours=lambda row: row["setup"] != FULL,
    shown=shown,
)
