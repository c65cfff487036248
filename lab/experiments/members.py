"""The ensemble beside each of its members alone: p50 and p99 of a request, in one process and in separate ones.

Every model computes with one thread, alone and in the ensemble, so that the members of an ensemble compute at the same
time if there is a core for each. The ensemble is compared with its slowest member, with the same clients and in the
same placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import MEMBERS, Placement, changed, photographs, workload
from lab.experiments.experiment import declared
from lab.rows import Part, Row, Rows, enough, measured, side_by_side

CLIENTS = (1, 8)
TOGETHER = "both"
SERVED: dict[str, tuple[str, ...]] = {**{name: (name,) for name in MEMBERS}, TOGETHER: MEMBERS}
PLACEMENTS: dict[Placement, str] = {"colocated": "one process", "separate": "a process per node"}
STORED = ("requests", "requests_per_s", "p50_ms", "p99_ms")
# One thread for each model, and one replica of each node.
EDIT = changed(member={"threads": 1}, deployment={"autoscaling_config": None, "num_replicas": 1})


def served(placement: Placement, name: str, seconds: float) -> Iterator[Row]:
    """Serve one member or both, and load the server by few and by more clients."""
    load = replace(workload("imagenet", "int8"), images=photographs("small"), members=SERVED[name])
    with running(OURS[placement], load, EDIT) as server:
        for clients in CLIENTS:
            found = server.load(load, "http", clients, seconds)
            yield {"clients": clients, **{figure: found[figure] for figure in STORED}}


def parts(seconds: float) -> Sequence[Part]:
    """Make each member, and both, in each placement a part."""
    return [
        Part(
            f"{name}, {placement}", partial(served, placement, name, seconds), {"placement": placement, "served": name}
        )
        for placement, name in product(PLACEMENTS, SERVED)
    ]


def shown(rows: Rows) -> Rows:
    """Add by how much the ensemble's latencies exceed its slowest member's; a negative figure is less."""
    alone: dict[tuple[str, int], Row] = {}
    for row in measured(rows):
        key = row["placement"], row["clients"]
        if row["served"] != TOGETHER and (key not in alone or row["p50_ms"] > alone[key]["p50_ms"]):
            alone[key] = row
    found = []
    for row in rows:
        slowest = alone.get((row["placement"], row.get("clients", 0)))
        if row["served"] == TOGETHER and "error" not in row and slowest is not None:
            more = {f"more_{name}": row[f"{name}_ms"] - slowest[f"{name}_ms"] for name in ("p50", "p99")}
            row = {**row, **more, "slowest": slowest["served"], "slowest_requests": slowest["requests"]}
        found.append({**row, "where": PLACEMENTS[row["placement"]]})
    return found


def compare(rows: Rows) -> Mapping[str, str]:
    """Tell what the ensemble adds to the latency of its slowest member."""
    compared = [row for row in enough(rows) if "slowest" in row and enough([{"requests": row["slowest_requests"]}])]
    if not compared:
        return {}
    more = {name: [row[f"more_{name}"] for row in compared] for name in ("p50", "p99")}
    told = ", ".join(f"{name} {min(each):+.1f} to {max(each):+.1f} ms" for name, each in more.items())
    return {"latency of the ensemble against its slowest member's": told}


MEMBERS_ALONE = declared(
    "members",
    parts=parts,
    ours=lambda row: row["served"] == TOGETHER,
    shown=shown,
    tabled=lambda rows: side_by_side(rows, "served", "where", "clients"),
    computed=compare,
)
