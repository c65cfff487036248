"""Poisson arrivals: latency and answered rate by protocol, here and at peers; and by the largest batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from ensemble_capacity.load.load import Arrivals, Closed, Mode
from lab.benchmark.systems import OURS, System, peers, running
from lab.benchmark.workloads import Workload, changed, workload
from lab.experiments.experiment import declared, figures
from lab.rows import Part, Row, Rows, enough, highest, side_by_side
from scripts.errors import ScriptError

SHARES, CLIENTS, ROUNDS = (0.5, 0.9, 1.2), 32, 3
PEERS = ("torchserve", "mlserver", "triton")
# A request that waits longer than this is lost; above capacity a queue would grow without end.
TIMEOUT_S = 10.0
FIGURES = ("requests", "requests_per_s", "failed", "p50_ms", "p99_ms")


def of_system(system: System, load: Workload, seconds: float) -> Iterator[Row]:
    """Send shares of what a closed loop over HTTP reaches, by each protocol, in each of the rounds."""
    with running(system, load) as server:
        capacity = server.row(load, "http", Closed(CLIENTS), seconds, TIMEOUT_S).requests_per_s
        if not capacity:
            raise ScriptError("no request was answered")
        for share, protocol in [*product(SHARES, system.forms)] * ROUNDS:
            rate = share * capacity
            row = server.row(load, protocol, Arrivals(rate), seconds, TIMEOUT_S)
            yield {"protocol": protocol, "share": share, "rate": rate, **figures(row, *FIGURES)}


def systems(seconds: float) -> Sequence[Part]:
    """Make each system a part."""
    load, others = workload("embedded", "int8"), peers()
    compared = (OURS["colocated"], *(others[name] for name in PEERS))
    return [Part(each.name, partial(of_system, each, load, seconds), {"system": each.name}) for each in compared]


def compare_protocols(rows: Rows) -> Mapping[str, str]:
    """List the highest rates that the protocols achieved with the same JPEGs, at each system that has both."""
    most = highest(enough(rows), "requests_per_s", "system", "protocol")
    told = [
        f"{name}: gRPC {row['requests_per_s']:.0f}/s, HTTP {most[name, 'http']['requests_per_s']:.0f}/s"
        for (name, protocol), row in most.items()
        if protocol == "grpc"
    ]
    return {"protocol that delivers more load": f"with the same JPEG: {'; '.join(told)}"} if told else {}


def with_shares(rows: Rows) -> Rows:
    """Add the share of the sent requests that failed, percent."""
    return [
        row if "error" in row else {**row, "failed_share": 100 * row["failed"] / (row["requests"] + row["failed"])}
        for row in rows
    ]


def tabled(rows: Rows) -> Rows:
    """Put the protocols side by side, without the lowest rate: no server is busy then."""
    busy = [row for row in rows if row.get("share") != min(SHARES)]
    return side_by_side(busy, "protocol", "system", "share", "rate")


ARRIVALS = declared(
    "arrivals",
    parts=systems,
    ours=lambda row: row["system"] == "ours",
    shown=with_shares,
    tabled=tabled,
    computed=compare_protocols,
)


# The largest batch, and the wait for it; a batch of one image waits for nothing.
SETTINGS = ((1, 0.0), (8, 0.0), (8, 5.0), (32, 0.0), (32, 20.0))
MODES: dict[str, Mode] = {"15/s": Arrivals(15), "25/s": Arrivals(25), f"{CLIENTS} clients": Closed(CLIENTS)}
FEW, *_, FULL = MODES


def batched(size: int, wait_ms: float, seconds: float) -> Iterator[Row]:
    """Serve a setting; send each rate, and as much as a closed loop reaches, in each of the rounds."""
    load = workload("photographs", "int8")
    edit = changed({"ingress": {"max_batch_size": size, "batch_wait_ms": wait_ms}})
    with running(OURS["colocated"], load, edit) as server:
        for name, mode in [*MODES.items()] * ROUNDS:
            before = server.batches()
            row = server.row(load, "http", mode, seconds)
            yield {"sent": name, **figures(row, *FIGURES), "batch": mean(server.batches() - before)}


def mean(batches: Counter[int]) -> float | None:
    """Calculate the mean number of images of a batch; None if there was none."""
    return sum(size * count for size, count in batches.items()) / batches.total() if batches else None


def settings(seconds: float) -> Sequence[Part]:
    """Make each setting a part."""
    named: list[dict[str, Any]] = [{"size": size, "wait_ms": wait_ms} for size, wait_ms in SETTINGS]
    return [Part(str(each), partial(batched, **each, seconds=seconds), each) for each in named]


def compare(rows: Rows) -> Mapping[str, str]:
    """Compare the highest rate, and the latency of few requests, by the largest batch."""
    own = enough(rows)
    best = highest([row for row in own if row["sent"] == FULL], "requests_per_s", "size")
    few = [row for row in own if row["sent"] == FEW and row["size"] == max(SETTINGS)[0]]
    rates = ", ".join(f"{row['requests_per_s']:.1f}/s in batches of up to {size}" for size, row in sorted(best.items()))
    waits = " and ".join(f"{row['p50_ms']:.1f} ms with a wait of {row['wait_ms']:g}" for row in few)
    return {"micro-batches": f"{rates}; at {FEW} and the largest batch a p50 of {waits}"}


BATCHING = declared(
    "batching",
    parts=settings,
    ours=lambda row: not row["wait_ms"],
    tabled=lambda rows: side_by_side(rows, "sent", "size", "wait_ms"),
    computed=compare,
)
