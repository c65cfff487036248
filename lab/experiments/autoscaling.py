"""Scales to a p99 of 50 ms on two traces of load: late requests and replica-seconds, by policy.

The member sleeps for 20 ms per image instead of computing, one image after the other, so that a replica adds capacity
on a machine of few cores. The ingress' process has every node, and is scaled. The policies are this
project's, Serve's default as it ships, Serve's with the delays that this project's has, and fixed counts: the count
that this project's policy computes for the peak, and fewer. The servers of two policies get a trace at the same time;
four of them would overload two cores. A request is late if it takes more than 50 ms from when it was due, or fails. A
simulation of an ideal queue tells how many fixed replicas suffice.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import yaml

from deployments.contract.batch import Batch, Work, predicted
from deployments.contract.member import MemberConfig, MemberInterface, Signature
from deployments.contract.payload import Pixels, Probabilities
from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import Records, between, latency_ms, quantile, with_failures
from ensemble_capacity.serving import serving
from lab.experiments.experiment import declared
from lab.rows import Part, Row, Rows, side_by_side

# Of an image; images wait for each other, as they do for a member's threads.
SLEEP_S = 0.02


class Sleeping(MemberConfig):
    """A kind of member that takes as long as a slow model, and no CPU time."""

    def signature(self, _repository: object) -> Signature:
        """See `MemberConfig.signature`."""
        return Signature(classes=2, version=1, labels=("no", "yes"), size=(32, 32))

    def make(self, _repository: object, _interface: MemberInterface, _max_batch_size: int) -> Sleeper:
        """See `MemberConfig.make`."""
        return Sleeper(self.name)


class Sleeper:
    """The node: one batch after the other."""

    def __init__(self, name: str) -> None:
        """Set the member's name."""
        self._name, self._turn = name, asyncio.Lock()

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Sleep, and predict the same for every image."""
        work = Work(f"predict {self._name}", batch)
        async with self._turn:
            await asyncio.sleep(SLEEP_S * len(work.payload))
        return predicted(work, self._name, np.full((len(work.payload), 2), 0.5, np.float32), [1] * len(work.payload))


P99_MS, BASE, PEAK = 50.0, 12.0, 60.0
LOOK_S = 0.5
DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LATENCY_TARGET, FIXED = "LatencyTarget", "fixed for the peak"
TOGETHER = (LATENCY_TARGET, FIXED), ("fixed, 3 replicas", "fixed, 2 replicas"), ("Serve's default", "Serve's, quick")
# Fixed replicas suffice if at most this share of the requests is late: that is the policy's own p99.
LATE = 0.01
Rate = Callable[[float], float]
# The rate by the share of the trace that is over.
TRACES: dict[str, Rate] = {
    "a day": lambda x: BASE + (PEAK - BASE) * math.sin(math.pi * x) ** 4,
    "bursts": lambda x: PEAK if x > 0.6 and (x * 20) % 2 < 1 else BASE * 1.5,
}


def config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the Serve config of a policy's options."""
    found: dict[str, Any] = copy.deepcopy(DECLARED["served"])
    found["applications"][0]["deployments"][0].update(options)
    return found


def arrivals(rate: Rate, seconds: float, peak: float = PEAK) -> Arrivals:
    """Draw Poisson arrivals of a rate that changes up to a peak, by thinning; the same ones at every call."""
    draw = np.random.default_rng(0)
    due = np.cumsum(draw.exponential(1 / peak, int(2 * peak * seconds)))
    due = due[due < seconds]
    kept = due[draw.random(len(due)) < [rate(each / seconds) / peak for each in due]]
    return Arrivals(len(kept) / seconds, times=tuple((kept - kept[0]).tolist()))


def image() -> bytes:
    """Draw a grey JPEG of 32x32 pixels: decoding it takes next to no time."""
    return cv2.imencode(".jpg", np.full((32, 32, 3), 128, np.uint8))[1].tobytes()


def sent(policies: Sequence[str], rate: Rate, seconds: float) -> Iterator[Row]:
    """Serve the options of policies, and send a trace to all their servers at the same time."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        urls = [stack.enter_context(serving(config(DECLARED["policies"][each]))) for each in policies]
        load = partial(loaded, rate=rate, seconds=seconds)
        for policy, row in zip(policies, pool.map(load, urls), strict=True):
            yield {"policy": policy, **row}


def loaded(url: str, rate: Rate, seconds: float) -> Row:
    """Send a trace to a server, and count its replicas meanwhile."""
    found, counts = counted(Target(url, Classify(), (image(),)), arrivals(rate, seconds), seconds, ("Ingress",))
    fixed_s = round(DECLARED["policies"][FIXED]["num_replicas"] * seconds)
    return {**summary(found, counts, seconds), "fixed_s": fixed_s}


def counted(target: Target, mode: Mode, seconds: float, deployments: Sequence[str]) -> tuple[Records, Sequence[int]]:
    """Warm a server up and send a load to it; return the requests, and how many replicas it had at each look."""
    with Generator(target, Closed(1)) as warming:
        warming.run(3)
    counts: list[tuple[float, int]] = []
    with httpx.Client(timeout=30) as client, Generator(target, mode) as generator:

        def look() -> None:
            if not counts or time.perf_counter() - counts[-1][0] >= LOOK_S:
                # Those that start, too.
                replicas = client.get(f"{target.url}/stats").json()["replicas"]
                there = sum(sum(replicas.get(name, {}).values()) for name in deployments)
                counts.append((time.perf_counter(), there))

        generator.run(seconds, tick=look)
    found = between(generator.records(), "due", generator.began, generator.began + seconds)
    return found, [there for _, there in counts]


def summary(found: Records, counts: Sequence[int], seconds: float, late_ms: float = P99_MS) -> Row:
    """Count the late requests, and the replicas over time; there is no p99 if more than 1 % failed."""
    p99 = quantile(with_failures(found), 99)
    return {
        "requests": len(found),
        "late": int((with_failures(found) > late_ms).sum()),
        "p50_ms": round(quantile(latency_ms(found), 50), 1),
        "p99_ms": round(p99, 1) if math.isfinite(p99) else None,
        "replica_s": round(float(np.mean(counts)) * seconds),
    }


def parts(seconds: float) -> Sequence[Part]:
    """Make each trace with two policies a part."""
    return [
        Part(f"{trace}, {' and '.join(policies)}", partial(sent, policies, rate, seconds), {"trace": trace})
        for trace, rate in TRACES.items()
        for policies in TOGETHER
    ]


def late_share(times: Sequence[float], replicas: int) -> float:
    """Simulate replicas behind an ideal queue: the first free replica takes the next request. Return the late share."""
    free, late = [0.0] * replicas, 0
    for due in times:
        done = max(heapq.heappop(free), due) + SLEEP_S
        heapq.heappush(free, done)
        late += (done - due) * 1000 > P99_MS
    return late / len(times)


def fewest(trace: str, seconds: float) -> tuple[int, float]:
    """Find the fewest fixed replicas that suffice for a trace, and the share that is late with them."""
    times = arrivals(TRACES[trace], seconds).times or ()
    shares = ((replicas, late_share(times, replicas)) for replicas in count(1))
    return next((replicas, share) for replicas, share in shares if share <= LATE)


def shown(rows: Rows) -> Rows:
    """Add the shares, and write a p99 of too many failed requests in words."""
    found = []
    for row in rows:
        if "error" not in row:
            p99 = "more than 1 % failed" if row["p99_ms"] is None else f"{row['p99_ms']:.0f}"
            seconds = row["fixed_s"] / DECLARED["policies"][FIXED]["num_replicas"]
            replicas, late = fewest(row["trace"], seconds)
            shares = {"share": 100 * row["late"] / row["requests"], "simulated_late": 100 * late}
            of_fewest = 100 * row["replica_s"] / (replicas * seconds)
            row = {**row, **shares, "p99": p99, "fewest": replicas, "of_fewest": of_fewest}
        found.append(row)
    return found


AUTOSCALING = declared(
    "autoscaling",
    parts=parts,
    ours=lambda row: row["policy"] == LATENCY_TARGET,
    shown=shown,
    tabled=lambda rows: side_by_side(rows, "trace", "policy"),
)
