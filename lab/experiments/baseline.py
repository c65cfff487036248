"""Plain Ray Serve as it comes, and as its documentation tunes it, beside this application.

All serve the same two int8 members. The chain is what Serve's pages show, a deployment for each step; it is tuned by
one thread per model, by `@serve.batch`, and by Serve's throughput mode with HAProxy in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows
from lab.experiments.ladder import IMAGES, Step, check, parts, picture, table

THROUGHPUT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
HAPROXY = {**THROUGHPUT, "RAY_SERVE_ENABLE_HA_PROXY": "1"}


def steps() -> list[Step]:
    """The chain, what tunes it, and this application."""
    return [
        Step("plain Ray Serve as it comes", "chain-untuned", precision="int8"),
        Step("one thread per model", "chain", precision="int8"),
        Step("and `@serve.batch`", "chain-batched", precision="int8"),
        Step("and throughput mode", "chain-batched", precision="int8", environment=THROUGHPUT),
        Step("and HAProxy", "chain-batched", precision="int8", environment=HAPROXY),
        Step("one thread per model, throughput mode and HAProxy", "chain", precision="int8", environment=HAPROXY),
        Step("this application, a process per node", precision="int8"),
        Step("this application, one process", placement="colocated", precision="int8"),
    ]


def measure(seconds: float) -> Sequence[Part]:
    """Serve and load each of them."""
    return parts(steps(), seconds)


def compare(rows: Rows) -> Mapping[str, Here]:
    """Nothing: no document reports one."""
    return {}


def groups(rows: Rows) -> Groups:
    """The rate of each, this application's marked."""
    [(heading, bars)] = picture(rows)
    return [(heading, [replace(bar, ours=bar.label.startswith("this application")) for bar in bars])]


BASELINE = Experiment(
    "baseline",
    "Requests per second of plain Ray Serve and of this application; more is better",
    f"{IMAGES}, int8",
    check,
    measure,
    table,
    compare,
    groups,
    seconds=6.0,
)
