"""Latency and achieved rate against the rate of Poisson arrivals, by HTTP and gRPC, here and at peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ensemble_capacity.load.load import Arrivals, Closed
from lab.benchmark.systems import OURS, System, peers, running
from lab.benchmark.workloads import Workload, workload
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from lab.pictures.chart import Bar
from scripts.errors import ScriptError
from scripts.results import Table

SHARES, CLIENTS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.2), 32
OTHERS = ("mlserver", "triton")
DELIVERS = "which protocol delivers more requests per second"
NONE = "-"
# A request that waits longer than this is lost; above capacity a queue would grow without end.
TIMEOUT_S = 10.0


def of_system(system: System, load: Workload, seconds: float) -> Iterator[dict[str, float | str]]:
    """The rows of a system: all rates, which are shares of what a closed loop over HTTP reaches, by each protocol."""
    with running(system, load) as server:
        capacity = server.row(load, "http", Closed(CLIENTS), seconds, TIMEOUT_S).requests_per_s
        if not capacity:
            raise ScriptError("no request was answered")
        for protocol in system.protocols:
            for share in SHARES:
                row = server.row(load, protocol, Arrivals(share * capacity), seconds, TIMEOUT_S)
                yield {
                    "protocol": protocol,
                    "share": share,
                    "rate": share * capacity,
                    "requests_per_s": row.requests_per_s,
                    "failed": row.failed,
                    **{name + "_ms": row.percentiles_ms[name] for name in ("p50", "p99")},
                }


def measure(seconds: float) -> Sequence[Part]:
    """Each system is a part."""
    load, others = workload("embedded", "int8"), peers()
    systems = (OURS["colocated"], *(others[name] for name in OTHERS))
    return [Part(each.name, partial(of_system, each, load, seconds), {"system": each.name}) for each in systems]


def most(rows: Rows, system: str) -> dict[str, float]:
    """The highest rate that each protocol of a system achieved."""
    own = [row for row in rows if row["system"] == system and "error" not in row]
    return {row["protocol"]: row["requests_per_s"] for row in sorted(own, key=lambda row: row["requests_per_s"])}


def compare(rows: Rows) -> Mapping[str, Here]:
    """Which protocol delivers more."""
    ours = most(rows, "ours")
    if len(ours) < len(OURS["colocated"].protocols):
        return {}
    first = max(ours, key=lambda protocol: ours[protocol])
    text = f"{'gRPC' if first == 'grpc' else 'HTTP'}: gRPC {ours['grpc']:.0f}/s, HTTP {ours['http']:.0f}/s"
    return {DELIVERS: Here(None, text, "this server instead of TorchServe; JPEGs of 15 KB; two cores with the client")}


def table(rows: Rows) -> Table:
    """A line for each load."""
    lines, notes = [], []
    for row in rows:
        if "error" in row:
            lines.append([f"{row['system']} did not run", *[NONE] * 7])
            notes.append(f"{row['system']}: {row['error']}")
            continue
        numbers = [f"{row[name]:.0f}" for name in ("rate", "requests_per_s", "failed")]
        times = [f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms")]
        lines.append([row["system"], row["protocol"], f"{row['share']:.1f}", *numbers, *times])
    heads = ("system", "protocol", "share of capacity", "sent/s", "answered/s", "failed", "p50, ms", "p99, ms")
    return Table(heads, lines, words=(0, 1), notes=notes)


def picture(rows: Rows) -> Groups:
    """The median latency by the rate, a group for each system and protocol."""
    groups: dict[str, list[Bar]] = {}
    for row in (row for row in rows if "error" not in row):
        text = f"{row['p50_ms']:.1f} ms, {row['requests_per_s']:.0f} answered/s, {row['failed']} failed"
        bar = Bar(f"{row['rate']:.0f} sent/s", row["requests_per_s"], text, row["system"] == "ours")
        groups.setdefault(f"{row['system']}, {row['protocol']}", []).append(bar)
    return list(groups.items())


ARRIVALS = Experiment(
    "arrivals",
    "Requests answered per second, by the rate of Poisson arrivals; with the median latency",
    "Images of 15 KB, models of 32x32 in int8, one process",
    check_photographs,
    measure,
    table,
    compare,
    picture,
    seconds=4.0,
)
