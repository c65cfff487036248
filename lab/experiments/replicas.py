"""Autoscaling of the bundled members by the shipped serve_config.yaml, beside fixed counts of replicas.

Each policy is served alone, and gets the same traces, a day and bursts. Their peak is a share of the rate that two
fixed replicas of each member answer. Only the members' replicas are counted. A request is late if it takes more than
100 ms from when it was due, or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import yaml

from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.measure import Duration, measure
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.serving import WARM_UP_S, serving
from lab.benchmark.workloads import photographs
from lab.experiments.autoscaling import PEAK, TRACES, arrivals, counted, summary
from lab.experiments.experiment import declared
from lab.rows import Part, Row, Rows, measured
from scripts.errors import ScriptError
from scripts.shipped import shipped

SHIPPED, COUNTS, COUNTED_ON = "as shipped", (2, 3, 4), 2
MEMBER_NODES = ("ResNet", "DenseNet")
LATE_MS, CLIENTS, CAPACITY_S = 100.0, 32, 10.0
# The peak of a trace, of the measured capacity.
SHARE = 0.8
POLICIES: dict[str, int | None] = {SHIPPED: None, **{f"fixed, {count} replicas": count for count in COUNTS}}


def config(replicas: int | None) -> dict[str, Any]:
    """Read the shipped configuration, and fix the replicas of its members if a count is given."""
    found: dict[str, Any] = yaml.safe_load(shipped("serve_config.yaml").read_text(encoding="utf-8"))
    for deployment in found["applications"][0]["deployments"]:
        if replicas is not None and deployment["name"] in MEMBER_NODES:
            del deployment["autoscaling_config"]
            deployment["num_replicas"] = replicas
    return found


def target(url: str) -> Target:
    """Send images of about 15 KB to a server."""
    return Target(url, Classify(), tuple(path.read_bytes() for path in photographs("small")))


def capacity() -> float:
    """Measure the images/s of two fixed replicas of each member. Raises ScriptError if nothing was answered."""
    with serving(config(COUNTED_ON)) as url:
        row = measure(target(url), Closed(CLIENTS), Duration(WARM_UP_S, CAPACITY_S))
    if not row.requests:
        raise ScriptError(f"no request was answered: {row.first_error}")
    return row.requests_per_s


def sent(trace: str, replicas: int | None, peak: Callable[[], float], seconds: float) -> Iterator[Row]:
    """Serve a policy, and send a trace to its server."""
    highest = SHARE * peak()

    def rate(share: float) -> float:
        return TRACES[trace](share) / PEAK * highest

    with serving(config(replicas)) as url:
        found, counts = counted(target(url), arrivals(rate, seconds, highest), seconds, MEMBER_NODES)
    yield {"peak": highest, **summary(found, counts, seconds, LATE_MS)}


def parts(seconds: float) -> Sequence[Part]:
    """Make each trace with each policy a part; all have the capacity that the first one measures."""
    peak = cache(capacity)
    return [
        Part(
            f"{trace}, {policy}",
            partial(sent, trace, POLICIES[policy], peak, seconds),
            {"trace": trace, "policy": policy},
        )
        for trace, policy in product(TRACES, POLICIES)
    ]


def shown(rows: Rows) -> Rows:
    """Add the share of late requests, and write a p99 of too many failed requests in words."""
    return [
        row
        if "error" in row
        else {
            **row,
            "share": 100 * row["late"] / row["requests"],
            "p99": "more than 1 % failed" if row["p99_ms"] is None else f"{row['p99_ms']:.0f}",
        }
        for row in rows
    ]


def notes(rows: Rows) -> list[str]:
    """Compare the shipped policy with the fewest fixed replicas that have no more late requests."""
    told = []
    for trace in TRACES:
        at: Mapping[str, Row] = {row["policy"]: row for row in measured(rows) if row["trace"] == trace}
        if (own := at.get(SHIPPED)) is None:
            continue
        fixed = [row for policy, row in at.items() if policy != SHIPPED and row["share"] <= own["share"]]
        if not fixed:
            told.append(f"{trace}: no fixed count has as few late requests as the shipped configuration.")
            continue
        least = min(fixed, key=lambda row: row["replica_s"])
        share = 100 * own["replica_s"] / least["replica_s"]
        used = f"the shipped configuration uses {share:.0f} % of the replica-seconds of {least['policy']}"
        told.append(f"{trace}: {used}, the fewest with no more late requests.")
    return told


REPLICAS = declared("replicas", parts=parts, ours=lambda row: row["policy"] == SHIPPED, shown=shown, notes=notes)
