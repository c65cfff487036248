"""Sends more than all members together can answer: to both members, to a cascade, and to ones that shed load.

One process with the bundled models serves both members, then a cascade of them, then cascades whose thresholds fall
under load: that one, and one with the student before the two. The first one's capacity is the best of three
measurements; each is then sent one and a half times as many labelled images, at random times, whatever comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, SHED, Records, latency_ms, ok, quantile
from lab.benchmark.systems import HTTP_PORT, VARIANTS, Running, running
from lab.benchmark.workloads import Edit, Workload, changed, workload
from lab.experiments.experiment import declared, labelled
from lab.rows import Part, Row, Rows

TIMES = 1.5
# The thresholds in force under load: nobody asks the DenseNet, and most images stop at the student, if it is there.
AT_THE_RESNET, AFTER_THE_STUDENT = [0.0], [0.6, 0.0]
QUEUES = {"from_queue_ms": 100, "until_queue_ms": 20}
# For every setup: what a batch costs beside its images is shared by more of them when many wait.
LARGEST_BATCH = 64
CLIENTS, CAPACITY_S, CAPACITY_ROUNDS, AFTER_S = 32, 8.0, 3, 5.0
REFUSED = 503
FULL = "both members"


def _change(exit_at: Sequence[float] | None = None) -> Edit:
    """Set large batches, and thresholds for load if there are any."""
    under_load = {"ensemble": {"under_load": {"exit_at": exit_at, **QUEUES}}} if exit_at is not None else {}
    return changed({"ingress": {"max_batch_size": LARGEST_BATCH}, **under_load})


SETUPS = {
    FULL: (VARIANTS["colocated"], _change()),
    "the cascade": (VARIANTS["cascade"], _change()),
    "the cascade, and thresholds for load": (VARIANTS["cascade"], _change(AT_THE_RESNET)),
    "the student first, and thresholds for load": (VARIANTS["student"], _change(AFTER_THE_STUDENT)),
}


def every_setup(seconds: float) -> Iterator[Row]:
    """Load each setup, one after the other. Raises ScriptError if an image can't be read, or a server did not start."""
    load, images = workload("embedded", "int8"), list(labelled().read())
    capacity = 0.0
    for name, (system, edit) in SETUPS.items():
        with running(system, load, edit) as server:
            capacity = capacity or _capacity(server, load)
            yield {"setup": name, "capacity": capacity, **overloaded(images, TIMES * capacity, seconds)}


def overloaded(images: Sequence[tuple[bytes, str]], rate: float, seconds: float) -> Row:
    """Send labelled images at a rate for a time, and single ones afterwards, and tell what becomes of them."""
    encoded, labels = zip(*images, strict=True)
    target = Target(f"http://127.0.0.1:{HTTP_PORT}", Classify(), encoded, labels)

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
        "top1": round(100 * np.count_nonzero(well["flags"] & RIGHT) / max(1, len(well)), 2),
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
