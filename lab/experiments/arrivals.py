"""Latency and answered rate by the rate of Poisson arrivals, over HTTP and gRPC, here and at peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product

from ensemble_capacity.load.load import Arrivals, Closed
from lab.benchmark.systems import OURS, System, peers, running
from lab.benchmark.workloads import Workload, workload
from lab.experiments.experiment import Bars, Experiment, Here, check_photographs
from lab.rows import Part, Rows, measured
from scripts.errors import ScriptError

SHARES, CLIENTS, ROUNDS = (0.5, 0.9, 1.2), 32, 3
PEERS = ("torchserve", "mlserver", "triton")
FIGURES = ("requests_per_s", "p50_ms", "p99_ms")
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
            loads=1 + ROUNDS * len(SHARES) * len(each.protocols),
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


ARRIVALS = Experiment(
    name="arrivals",
    title="Requests answered per second, by the rate of Poisson arrivals; with the median latency",
    setting=f"Images of 15 KB, models of 32x32 in int8, one process of ours, {ROUNDS} rounds",
    check=check_photographs,
    parts=parts,
    columns="system {system} | protocol {protocol} | share of capacity {share:.1f} | sent/s {rate:.0f} | "
    "requests {requests:,} | answered/s {requests_per_s:.0f} | failed {failed:d} | "
    "p50, ms {p50_ms:.1f} | p99, ms {p99_ms:.1f}",
    picture=Bars(
        "requests_per_s",
        "{rate:.0f} sent/s",
        "{requests_per_s:.0f} answered/s, p50 {p50_ms:.1f} ms, {failed} failed",
        "{system}, {protocol}",
        lambda row: row["system"] == "ours",
    ),
    seconds=4.0,
    figures=FIGURES,
    compare=compare,
    differs="other servers; JPEGs instead of JSON lists and tensors; two cores, which the clients share",
)
