"""Injects faults into running servers under load, and reports what their clients saw.

    ensemble faults                          # every scenario
    ensemble faults members haproxy --markdown faults.md
    ensemble faults fuzz --help              # hostile and costly input, which has options of its own
    ensemble faults refusals --help          # more requests than a server can answer, likewise
    ensemble faults kills --help             # processes killed at any moment of a start, a load, a stop
    ensemble faults history --help           # whether each answer was possible while faults were done

Each scenario starts a server of its own, of the shipped configuration with the bundled models. Clients never retry a
request. It prints the requests that failed, the answers that lacked a member, the rate of answers during the fault as a
fraction of the rate before, and the longest time without an answer. A server starts in half a minute; all scenarios
take about a quarter of an hour. The exit status is 1 if a scenario could not be done, or failed every request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import psutil

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED, Records, latency_ms, ok, quantile
from ensemble_models.options import POSITIVE, Command, file_options, option
from ensemble_serving.transports import Request, once
from lab.benchmark.workloads import workload
from lab.faults.campaign import fault_argument, parts, report
from lab.faults.fuzz.images import ORIGINAL_EDGE, scans
from lab.faults.scanner import RATE, scan_methods, scan_paths
from lab.faults.stage import CALM_S, RESERVED_CPUS, URL, Fault, Stage, stage
from lab.rows import Row, Rows
from scripts.serve.api import ServeApi
from scripts.serve.haproxy_config import BEGINNING_BYTES

NODES = ("JpegTransformer", "ResNet", "DenseNet", "Combiner", "Labeler")
SMALL = ("JpegTransformer", "Combiner", "Labeler")
TWO_OF_EACH, THREE, TWO_INGRESSES = dict.fromkeys(NODES, 2), dict.fromkeys(NODES, 3), {"Ingress": 2}
FROZEN_S, ATTACK_S = 15.0, 20.0
BOMBS, SLOW_BODIES, BRACKET_SENDERS = 8, 600, 4
CLIENTS = 16
BRACKETS = b'{"inputs": [' + b"[]," * 10_400_000 + b"[]]}"
COLUMNS = (
    "what is done {what} | requests {requests:,} | failed {failed:,} | degraded {degraded:,} | "
    "rate kept {kept:.2f} | outage, s {dark_s:.1f} | p99, ms {p99_ms:,.0f}"
)

Do = Callable[[Stage], None]
KILL, FREEZE = psutil.Process.kill, psutil.Process.suspend


def lose(by: Callable[[psutil.Process], None], *parts: str) -> Do:
    """Kill or freeze a process of each part or a replica of each deployment, and wait until another one is there."""

    def is_replaced(here: Stage, part: str, before: list[psutil.Process]) -> bool:
        now = here.processes(part)
        return before[0] not in now and len(now) >= len(before)

    def do(here: Stage) -> None:
        for part in parts:
            before = here.processes(part)
            with here.gone(part):
                by(before[0])
                here.until(partial(is_replaced, here, part, before))

    return do


def freeze_a_member(here: Stage) -> None:
    """Freeze a member's only replica for a while."""
    [frozen] = here.processes("ResNet")
    with here.gone("ResNet"):
        frozen.suspend()
        time.sleep(FROZEN_S)
        if frozen.is_running():
            frozen.resume()


def redeploy(here: Stage, names: Sequence[str], is_done: Callable[[], bool], **changed: Any) -> None:
    """Deploy changed options of some deployments, and wait until it is done."""
    with here.gone(*names):
        for options in here.config["applications"][0]["deployments"]:
            if options["name"] in names:
                options.update(changed)
        ServeApi(here.dashboard).deploy(here.config)
        here.until(is_done)


def roll(*names: str) -> Do:
    """Replace every replica of some deployments, and wait until the new ones answer."""

    def do(here: Stage) -> None:
        before = {name: set(here.processes(name)) for name in names}
        # Another reservation than before: nothing else depends on it.
        other = round(random.uniform(0.04, RESERVED_CPUS), 4)

        def is_done() -> bool:
            return not any(old & set(here.processes(name)) for name, old in before.items())

        redeploy(here, names, is_done, ray_actor_options={"num_cpus": other})

    return do


def scale(*counts: int) -> Do:
    """Give every node each of these numbers of replicas, one after the other."""

    def have(here: Stage, count: int) -> bool:
        return all(len(here.processes(name)) == count for name in NODES)

    def do(here: Stage) -> None:
        for count in counts:
            redeploy(here, NODES, partial(have, here, count), num_replicas=count)

    return do


def send_scan_bombs(here: Stage) -> None:
    """Send JPEGs that take long to decode."""
    bomb = scans(ORIGINAL_EDGE, 1000)
    for _ in range(BOMBS):
        once(URL, Request("/classify", bomb), timeout_s=120)
    here.until_whole()


def send_brackets(here: Stage) -> None:
    """Let a few clients send 31 MB of JSON brackets again and again."""
    target = Target(URL, Classify("/v2/models/ensemble/infer"), (BRACKETS,), timeout_s=120)
    with Generator(target, Closed(BRACKET_SENDERS)) as senders:
        senders.run(ATTACK_S)
    here.until_whole()


def send_slow_bodies(beginning: int, here: Stage) -> None:
    """Send bodies over many connections, at ten bytes per second each, behind so many bytes at once."""

    async def body() -> AsyncIterator[bytes]:
        yield bytes(beginning)
        while True:
            yield b"0123456789"
            await asyncio.sleep(1)

    async def send(client: httpx.AsyncClient) -> None:
        while True:
            with suppress(httpx.HTTPError):
                await client.post("/classify", content=body(), headers={"content-length": "100000"})
            # What is refused at once comes again in a second.
            await asyncio.sleep(1)

    async def attack() -> None:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=URL, limits=unlimited, timeout=None) as client:  # noqa: S113
            with suppress(TimeoutError):
                async with asyncio.timeout(ATTACK_S):
                    await asyncio.gather(*(send(client) for _ in range(SLOW_BODIES)))

    asyncio.run(attack())
    here.until_whole()


kill_members = lose(KILL, "ResNet", "DenseNet", "ResNet")
kill_ingresses = lose(KILL, "Ingress", "Ingress", "Ingress")
# As many bytes as let a body pass HAProxy.
PASSING = BEGINNING_BYTES + 100
SCENARIOS = (
    Fault("members", "a member's only replica is killed, three times", kill_members),
    Fault("members-of-two", "one of a member's two replicas is killed, three times", kill_members, TWO_OF_EACH),
    Fault(
        "nodes",
        "the only transformer, combiner and labeler are killed, one after the other",
        lose(KILL, *SMALL),
    ),
    Fault(
        "nodes-of-two",
        "one of two transformers, combiners and labelers is killed",
        lose(KILL, *SMALL),
        TWO_OF_EACH,
    ),
    Fault("frozen-member", f"a member's only replica is frozen for {FROZEN_S:.0f} s", freeze_a_member),
    Fault("frozen-nodes", "the only transformer, combiner and labeler are frozen", lose(FREEZE, *SMALL)),
    Fault(
        "frozen-ingress",
        "one of two replicas of the ingress is frozen",
        lose(FREEZE, "Ingress"),
        TWO_INGRESSES,
    ),
    Fault("frozen-haproxy", "HAProxy is frozen", lose(FREEZE, "haproxy")),
    Fault("ingress", "one of two replicas of the ingress is killed, three times", kill_ingresses, TWO_INGRESSES),
    Fault(
        "node-of-three", "one of three machines is lost, and a replica of each node", Stage.kill_a_node, THREE, nodes=3
    ),
    Fault("controller", "Serve's controller is killed", lose(KILL, "ray::ServeController")),
    Fault("haproxy", "HAProxy is killed", lose(KILL, "haproxy")),
    Fault("rollout", "every node is rolled out anew, with one replica each", roll(*NODES)),
    Fault("rollout-of-two", "every node is rolled out anew, with two replicas each", roll(*NODES), TWO_OF_EACH),
    Fault("rollout-colocated", "the one process of all nodes is rolled out anew", roll("Ingress"), {}, "colocated"),
    Fault("scale-down", "every node goes from two replicas to one", scale(1), TWO_OF_EACH),
    Fault("scan-bombs", f"{BOMBS} JPEGs of 49 megapixels in 1,010 scans are sent", send_scan_bombs),
    Fault("slow-bodies", f"{SLOW_BODIES} clients send bodies at 10 bytes a second", partial(send_slow_bodies, 0)),
    Fault(
        "stalled-bodies",
        f"{SLOW_BODIES} clients send {BEGINNING_BYTES / 1024:.0f} KB, then 10 bytes a second",
        partial(send_slow_bodies, PASSING),
    ),
    Fault("unknown-paths", f"{RATE} unknown paths a second are asked for", scan_paths),
    Fault("unknown-methods", f"{RATE} unknown methods of gRPC a second are called", scan_methods),
    Fault("brackets", f"{BRACKET_SENDERS} clients send 31 MB of brackets again and again", send_brackets),
)


def measure(scenario: Fault, clients: int) -> Rows:
    """Measure what clients see of a scenario.

    Raises ScriptError if the server did not start, or was not whole again in time.
    """
    with stage(workload("embedded", "int8"), scenario, clients) as here:
        began = time.perf_counter()
        scenario.do(here)
        ended = time.perf_counter() - CALM_S
    seen = here.clients
    return [sight(seen.records(), seen.began, began, ended, seen.first_error)]


def sight(found: Records, watched_from: float, began: float, ended: float, first_failure: str = "") -> Row:
    """Summarize the requests that clients made from `watched_from` on, around a fault; times are `time.perf_counter`'s.

    `degraded` answers lack a member, `dark_s` is the longest time without an answer, and `kept` is the answers per
    second during the fault as a fraction of the rate before.
    """
    answers = found[ok(found)]
    ends = np.sort(answers["done"])
    before = _rate(ends, ends[0] if len(ends) else began, began)
    return {
        "requests": len(found),
        "failed": len(found) - len(answers),
        "degraded": int(np.count_nonzero(answers["flags"] & DEGRADED)),
        "dark_s": float(np.diff(ends, prepend=watched_from).max(initial=0.0)) if len(ends) else float("inf"),
        "p99_ms": quantile(latency_ms(answers), 99),
        "kept": _rate(ends, began, ended) / before if before else float("nan"),
        "first_failure": first_failure,
    }


def _rate(ends: Any, since: float, until: float) -> float:
    """Return the rate per second of the times between two others; not a number if there is no time between."""
    return np.count_nonzero((since < ends) & (ends <= until)) / (until - since) if until > since else float("nan")


def note(row: Row) -> str:
    """Tell the first failure of a scenario."""
    return f"{row['scenario']}: the first failure was {row['first_failure']}" if row["first_failure"] else ""


@click.command("faults", cls=Command, help=__doc__)
@fault_argument("scenario", SCENARIOS)
@option("--clients", type=POSITIVE, default=CLIENTS, help="Clients at a time.")
@file_options("json", "markdown")
def main(names: Sequence[str], clients: int, **files: Path | None) -> None:
    """Do each scenario."""
    report(
        parts("scenario", SCENARIOS, names, partial(measure, clients=clients)),
        COLUMNS,
        files,
        failed=lambda row: bool(row["failed"] == row["requests"]),
        note=note,
    )
