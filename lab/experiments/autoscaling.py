"""Scales to a p99 of 50 ms on three traces of load: late requests and replica-seconds, by policy.

    ensemble experiments autoscaling --json docs/benchmarks/autoscaling.json

The member sleeps for 20 ms per image instead of computing, one image after the other, so that a replica adds capacity
on a machine of few cores. Everything is in the ingress' process, which is what is scaled. The policies are this
project's, Serve's default as it ships, Serve's with the delays that this project's has, and a fixed count sized for the
peak. A request is late if it takes more than 50 ms from when it was due, or fails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import cv2
import httpx
import numpy as np
from tqdm import tqdm

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import Records, between, latency_ms, quantile, with_failures
from ensemble_capacity.plan.server import serving
from graph.scaling.latency import Load, needed
from lab.experiments.sleeping import SLEEP_S
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.results import Table, add_files, check_files, write_files

P99_MS, BASE, PEAK, MOST = 50.0, 12.0, 60.0, 6
HEADINGS = ("trace", "policy", "requests", "late", "late, %", "p99, ms", "replica-seconds", "of the fixed count, %")
LOOK_S, KEEP_S = 0.5, 30
FAST = {"upscale_delay_s": 0, "downscale_delay_s": 0, "metrics_interval_s": 0.5, "look_back_period_s": 10}
OURS = {"policy_function": "graph.scaling.latency:LatencyTarget", "policy_kwargs": {"p99_ms": P99_MS, "keep_s": KEEP_S}}
Rate = Callable[[float], float]
# The rate by the share of the trace that is over.
TRACES: dict[str, Rate] = {
    "a day": lambda x: BASE + (PEAK - BASE) * math.sin(math.pi * x) ** 4,
    "a step": lambda x: PEAK if 0.55 <= x < 0.8 else BASE * 2,
    "bursts": lambda x: PEAK if x > 0.6 and (x * 20) % 2 < 1 else BASE * 1.5,
}


def fixed_count() -> int:
    """The replicas that the peak needs, which a count that never changes has."""
    return needed(Load(PEAK, SLEEP_S + 0.005), P99_MS / 1000, 0.01, 1, MOST)


def policies() -> dict[str, dict[str, Any]]:
    """The options of the deployment, by policy."""
    bounds = {"min_replicas": 1, "max_replicas": MOST}
    return {
        "LatencyTarget": {"autoscaling_config": {**bounds, **FAST, "policy": OURS}},
        "Serve's default": {"autoscaling_config": bounds},
        "Serve's, quick": {
            "autoscaling_config": {**bounds, **FAST, "downscale_delay_s": KEEP_S, "target_ongoing_requests": 1}
        },
        "fixed for the peak": {"num_replicas": fixed_count()},
    }


def config(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is served."""
    inline = {"placement": "inline"}
    return {
        "proxy_location": "HeadOnly",
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": "ensemble",
                "route_prefix": "/",
                "import_path": "lab.experiments.sleeping:build",
                "args": {
                    "front": "direct",
                    "members": [{"name": "resnet", "threads": 1, **inline}],
                    **dict.fromkeys(("transformer", "combiner", "labeler"), inline),
                    "ingress": {"max_batch_size": 1, "max_concurrent_batches": 1},
                },
                "deployments": [{"name": "Ingress", "ray_actor_options": {"num_cpus": 0.05}, **options}],
            }
        ],
    }


def arrivals(rate: Rate, seconds: float) -> Arrivals:
    """Poisson arrivals of a rate that changes, by thinning; the same ones at every call."""
    draw = np.random.default_rng(0)
    due = np.cumsum(draw.exponential(1 / PEAK, int(2 * PEAK * seconds)))
    due = due[due < seconds]
    kept = due[draw.random(len(due)) < [rate(each / seconds) / PEAK for each in due]]
    return Arrivals(len(kept) / seconds, times=tuple((kept - kept[0]).tolist()))


def image() -> bytes:
    """A grey JPEG of 32x32 pixels: decoding it takes next to no time."""
    return cv2.imencode(".jpg", np.full((32, 32, 3), 128, np.uint8))[1].tobytes()


def running(url: str) -> int:
    """The replicas that take requests or start to, as /stats has them."""
    return sum(httpx.get(f"{url}/stats", timeout=30).json()["replicas"].get("Ingress", {}).values())


def measured(options: Mapping[str, Any], rate: Rate, seconds: float) -> dict[str, Any]:
    """What a trace does to a server."""
    with serving(config(options)) as url:
        target = Target(url, Classify(), (image(),))
        with Generator(target, Closed(1)) as warming:
            warming.run(3)
        counts: list[tuple[float, int]] = []
        with Generator(target, arrivals(rate, seconds)) as generator:
            began = generator.began

            def look() -> None:
                if not counts or time.perf_counter() - counts[-1][0] >= LOOK_S:
                    counts.append((time.perf_counter(), running(url)))

            generator.run(seconds, tick=look)
        found = generator.records()
    return summary(found, counts, began, seconds)


def summary(found: Records, counts: Sequence[tuple[float, int]], began: float, seconds: float) -> dict[str, Any]:
    """Late requests, and the replicas over time."""
    found = between(found, "due", began, began + seconds)
    late = int((with_failures(found) > P99_MS).sum())
    mean = float(np.mean([count for _, count in counts]))
    return {
        "requests": len(found),
        "late": late,
        "p50_ms": round(quantile(latency_ms(found), 50), 1),
        "p99_ms": round(quantile(with_failures(found), 99), 1),
        "replica_s": round(mean * seconds),
        "replicas": [[round(at - began, 1), count] for at, count in counts],
    }


def cells(trace: str, policy: str, result: Mapping[str, Any], fixed_s: float) -> list[str]:
    """A line of the table."""
    return [
        trace,
        policy,
        f"{result['requests']:,}",
        f"{result['late']:,}",
        f"{100 * result['late'] / result['requests']:.2f}",
        f"{result['p99_ms']:.0f}",
        f"{result['replica_s']:,}",
        f"{100 * result['replica_s'] / fixed_s:.0f}",
    ]


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, measure and report."""
    parser = described(__doc__, "ensemble experiments autoscaling")
    parser.add_argument("--seconds", type=positive, default=600, help="of a trace; default: %(default)s")
    parser.add_argument("--policies", nargs="+", choices=list(policies()), default=list(policies()))
    parser.add_argument("--traces", nargs="+", choices=list(TRACES), default=list(TRACES))
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    results: list[tuple[str, str, dict[str, Any]]] = []
    with errors_in_one_line():
        for trace, policy in tqdm([(t, p) for t in args.traces for p in args.policies], unit="server"):
            results.append((trace, policy, measured(policies()[policy], TRACES[trace], args.seconds)))
            # After each, so that what was measured stays when a run is ended early.
            fixed_s = fixed_count() * args.seconds
            table = Table(HEADINGS, [cells(*each, fixed_s) for each in results], words=(0, 1))
            named = [{"trace": trace, "policy": policy, **result} for trace, policy, result in results]
            facts = {"date": datetime.now(UTC).date().isoformat(), "seconds": args.seconds, "p99_ms": P99_MS}
            write_files(args, table, {**facts, "fixed": fixed_count(), "measured": named})
    table.show()
