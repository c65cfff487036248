"""Compares this application with its unserved models and with other servers: `ensemble benchmark`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
from tqdm import tqdm

from ensemble_capacity.plan.__main__ import fixed
from ensemble_models.options import POSITIVE, SHARE, Command, Number, file_options, option, write_files
from lab.benchmark.limit import Limit
from lab.benchmark.systems import System, can_serve, named, peers, running
from lab.benchmark.workloads import WORKLOADS, Workload, workload
from lab.rows import Row, Rows, medians, table

# Figures of a row, of which the median over the rounds is taken.
MEASURES = (
    "requests_per_s",
    "p50_ms",
    "p99_ms",
    "server_cpu_ms_per_request",
    "client_cpu_ms_per_request",
    "resident_mb",
    "ratio_to_limit",
    "tail_requests_per_s",
    "tail_ratio_to_limit",
)
COLUMNS = (
    "system {system} | placement {placement} | protocol {protocol} | clients {clients:d} | "
    "req/s {requests_per_s:,.0f} | p50 ms {p50_ms:,.2f} | p99 ms {p99_ms:,.1f} | "
    "server CPU ms {server_cpu_ms_per_request:,.2f} | client CPU ms {client_cpu_ms_per_request:,.2f} | "
    "MB {resident_mb:,.0f} | of limit {ratio_to_limit:,.2f} | "
    "req/s within tail {tail_requests_per_s:,.1f} | of limit {tail_ratio_to_limit:,.2f}"
)


def run(
    load: Workload,
    systems: Sequence[System],
    limit: Limit | None,
    clients: Sequence[int],
    seconds: float,
    rounds: int,
    with_tail: bool = False,
) -> Iterator[Row]:
    """Measure every system in each round, with the limit before and after it.

    Raises ScriptError if a system did not start, or a request failed.
    """
    for number in range(rounds):
        before = limit.measure() if limit else {}
        yield from ({**_key(load, None, None, count), **row} for count, row in before.items())
        for system in tqdm(systems, f"{load.name}, round {number + 1}", unit="system"):
            found = []
            with running(system, load, held) as server:
                for protocol in system.forms:
                    rows = [
                        {**_key(load, system, protocol, count), **server.load(load, protocol, count, seconds)}
                        for count in clients
                    ]
                    if with_tail:
                        most, lone_ms = max(row["requests_per_s"] for row in rows), rows[0]["p50_ms"]
                        rate = server.rate_within_tail(load, protocol, lone_ms, most, seconds)
                        rows[0]["tail_requests_per_s"] = rate
                    found += rows
            after = limit.measure() if limit else {}
            yield from ({**_key(load, None, None, count), **row} for count, row in after.items())
            if limit:
                _add_ratios(found, before, after)
            yield from found
            before = after


def held(config: dict[str, Any]) -> None:
    """Keep the replicas that a server starts with: the start of another one takes the cores that are measured."""
    config.update(fixed(config))


def _key(load: Workload, system: System | None, protocol: str | None, clients: int) -> Row:
    """Return the columns that identify a row; without a system the row is the limit's."""
    name, placement = (system.name, system.placement) if system else ("limit", None)
    return {"workload": load.name, "system": name, "placement": placement, "protocol": protocol, "clients": clients}


def _add_ratios(rows: Rows, before: dict[int, Row], after: dict[int, Row]) -> None:
    """Add each rate's ratio to the limit around it: at the same number of clients, or the highest for a tail."""
    around = {clients: (before[clients]["requests_per_s"] + after[clients]["requests_per_s"]) / 2 for clients in before}
    for row in rows:
        row["ratio_to_limit"] = row["requests_per_s"] / around[row["clients"]]
        if "tail_requests_per_s" in row:
            row["tail_ratio_to_limit"] = row["tail_requests_per_s"] / max(around.values())


def summary(samples: Rows) -> Rows:
    """Take the medians; every row has every figure, None for one that its system has not."""
    return [{**row, **{name: row.get(name) for name in ("requests", *MEASURES)}} for row in medians(samples, MEASURES)]


@click.command("benchmark", cls=Command)
@option("--workload", "workload_name", type=click.Choice(WORKLOADS), default=WORKLOADS[0], help="Models and images.")
@option("--precision", type=click.Choice(["float32", "int8"]), default="int8", help="Of the models.")
@option("--systems", multiple=True, metavar="NAME...", help="Default: limit, ours and the peers of such models.")
@option("--clients", type=POSITIVE, multiple=True, default=(1, 8, 32), metavar="N...", help="Clients at a time.")
@option("--seconds", type=Number(), default=3, help="Seconds of each measurement.")
@option("--rounds", type=POSITIVE, default=2, help="How often each system is measured.")
@option("--tail", is_flag=True, help="Also search the rate within the tail; 1 to 3 minutes each.")
@option("--stops", type=SHARE, multiple=True, metavar="SHARE...", help="Shares of photographs that exit early.")
@option("--repeats", type=SHARE, metavar="SHARE", help="Share of requests that repeat an image.")
@file_options("json", "markdown")
def main(**given: Any) -> None:
    """Compare this application with its unserved models and with other servers, side by side in one run.

    ensemble benchmark --workload embedded --systems limit ours triton --json rows.json

    Every round takes each system in turn, with the limit measured again between them; rows are medians over the rounds.
    Our server does not scale: each node keeps the replicas that it starts with.
    The load is a closed loop of clients in a process of its own, on the same cores. `--tail` adds to each row of one
    client the highest rate of Poisson arrivals whose p99 is at most 3 times the p50 of that row.

    Workloads: `embedded` has the bundled models, `imagenet` ResNet-50 v1.5 and DenseNet-169 at 224x224 with random
    weights. `trivial` has constant models, so that only serving costs. `photographs` and `photographs-12mp` have the
    models of configs/photographs.yaml, with photographs of 500x375 pixels or of 12 megapixels.

    Systems: `limit`, `ours` (colocated and separate, HTTP and gRPC), `throughput` (a process per core), and
    `colocated`, `cascade`, `student` or `cached` (one process, HTTP alone). A file of `lab/benchmark/peers` is a
    system, too. Some have variants such as `triton-callable`. Of the peers only Triton serves models of several sizes,
    as photographs need.
    """
    args = SimpleNamespace(**given)
    if args.tail and args.clients[0] != 1:
        raise click.UsageError("--tail is about a lone client; begin --clients with 1")
    chosen = named(args.systems or ["ours", *peers()])
    load = replace(workload(args.workload_name, args.precision), stops=args.stops or None, repeats=args.repeats)
    systems = chosen if args.systems else [system for system in chosen if can_serve(system, load)]
    limit = Limit(load, args.clients, args.seconds) if "limit" in (args.systems or ["limit"]) else None
    samples: Rows = []
    try:
        for row in run(load, systems, limit, args.clients, args.seconds, args.rounds, args.tail):
            samples.append(row)
    finally:
        # Of what ends early, what was measured.
        if samples:
            rows = summary(samples)
            (compared := table(COLUMNS, rows)).show()
            write_files(args, compared, rows)


if __name__ == "__main__":
    main()
