"""Plain Ray Serve as it comes, and as its documentation tunes it, beside this application.

    ensemble experiments baseline --data test.zip --json docs/benchmarks/baseline.json --markdown baseline.md

All serve the same two int8 members. The chain is what Serve's pages show, a deployment for each step; it is tuned by
one thread per model, by `@serve.batch`, and by Serve's throughput mode with HAProxy in front.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.lab.experiments.ladder import SLOW, Step, run

THROUGHPUT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
HAPROXY = {**THROUGHPUT, "RAY_SERVE_ENABLE_HA_PROXY": "1"}


def steps() -> list[Step]:
    """The chain, what tunes it, and this application."""
    return [
        Step("plain Ray Serve as it comes", "chain-untuned", precision="int8", environment=SLOW),
        Step("one thread per model", "chain", precision="int8", environment=SLOW),
        Step("and `@serve.batch`", "chain-batched", precision="int8", environment=SLOW),
        Step("and throughput mode", "chain-batched", precision="int8", environment=THROUGHPUT),
        Step("and HAProxy", "chain-batched", precision="int8", environment=HAPROXY),
        Step("one thread per model, throughput mode and HAProxy", "chain", precision="int8", environment=HAPROXY),
        Step("this application, a process per node", precision="int8"),
        Step("this application, one process", placement="colocated", precision="int8"),
    ]


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, measure and report."""
    run("baseline", __doc__ or "", steps(), arguments)
