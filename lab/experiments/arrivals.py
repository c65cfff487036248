"""Latency and answered rate by the rate of Poisson arrivals, over HTTP and gRPC, here and at peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product

from ensemble_capacity.load.load import Arrivals, Closed
from lab.benchmark.systems import OURS, System, peers, running
from lab.benchmark.workloads import Workload, workload
from lab.experiments.experiment import Here, check_photographs, declared
from lab.rows import Part, Rows, measured
from scripts.errors import ScriptError

SHARES, CLIENTS, ROUNDS = (0.5, 0.9, 1.2), 32, 3
PEERS = ("torchserve", "mlserver", "triton")
# A request that waits longer than this is lost; above capacity a queue would grow without end.
TIMEOUT_S = 10.0


def of_system(system: System, load: Workload, seconds: float) -> Iterator[dict[str, float | str]]:
    """Send shares of what a closed loop over HTTP reaches, by each protocol, in each of the rounds."""
    with running(system, load) as server:
        capacity = server.row(load, "http", Closed(CLIENTS), seconds, TIMEOUT_S).requests_per_s
        if not capacity:
            raise ScriptError("no request was answered")
        for share, protocol in [*product(SHARES, system.protocols)] * ROUNDS:
            row = server.row(load, protocol, Arrivals(share * capacity), seconds, TIMEOUT_S)
            yield {
                "protocol": protocol,
                "share": share,
                "rate": share * capacity,
                "requests": row.requests,
                "requests_per_s": row.requests_per_s,
                "failed": row.failed,
                **{name + "_ms": row.percentiles_ms[name] for name in ("p50", "p99")},
            }


def parts(seconds: float) -> Sequence[Part]:
    """Make each system a part."""
    load, others = workload("embedded", "int8"), peers()
    systems = (OURS["colocated"], *(others[name] for name in PEERS))
    return [
        Part(
            each.name,
            partial(of_system, each, load, seconds),
            {"system": each.name},
        )
        for each in systems
    ]


def compare(rows: Rows) -> Mapping[str, Here]:
    """Compare the highest rates that the protocols achieved, at each system that has both."""
    most: dict[str, dict[str, float]] = {}
    for row in measured(rows):
        own = most.setdefault(row["system"], {})
        own[row["protocol"]] = max(own.get(row["protocol"], 0.0), row["requests_per_s"])
    told = [f"{name}: gRPC {own['grpc']:.0f}/s, HTTP {own['http']:.0f}/s" for name, own in most.items() if len(own) > 1]
    return {"protocol that delivers more load": Here(None, "; ".join(told))} if told else {}


ARRIVALS = declared(
    "arrivals", check=check_photographs, parts=parts, ours=lambda row: row["system"] == "ours", compare=compare
)
