"""Requests whose traces a client begins, and where their time goes: the critical path, by nodes and hops."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, takewhile
from statistics import fmean
from typing import Any

from deployments.contract.member import OPERATION
from deployments.observe.tracing import BATCH
from ensemble_capacity.load.load import Arrivals
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED
from ensemble_capacity.plan.server import WARM_UP_S
from ensemble_serving.transports import NoResponse, Transport, connect
from scripts.errors import ScriptError
from scripts.trace.spans import Span

ARROW, ELSEWHERE = " to ", "its server's "
# By how much of the latency its parts may miss it.
TOLERANCE = 0.03
Asked = tuple[Span, float]
# Spans by their parents' ids.
Below = Mapping[str | None, Sequence[Span]]


def path(
    span: Span, below: Below, where: str = "", begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, int]]:
    """Divide a span's time, the last part first: microseconds of each node and, with both names, of each hop.

    `below` has the spans by their parents' ids, `where` is what names begin with; from `begin` to `end` it counts.
    """
    begin, end = max(begin, span.start_us), span.end_us if end is None else min(end, span.end_us)
    own = where + _node(span)
    inner = where if own in {"client", where + "classify"} else ELSEWHERE
    now, later = end, own
    for child in sorted(below.get(span.span_id, ()), key=lambda child: (child.end_us, child.start_us), reverse=True):
        # A server ends its span when it has sent the answer, which its client may have by then.
        last, first = min(child.end_us, end), max(child.start_us, begin)
        if child.name == BATCH or first > last or last > now:
            continue
        parts = list(path(child, below, inner, first, last))
        name = inner + _node(child)
        yield name + ARROW + later, now - last
        yield from parts
        now, later = first, name
    yield (own if later == own else own + ARROW + later), now - begin


def _node(span: Span) -> str:
    """Name a span's node; every member is called `member`."""
    return "member" if span.name.startswith(OPERATION) else span.name


async def ask(transport: Transport, image: bytes) -> Asked:
    """Classify an image; return the client's span, and the latency by its own clock, milliseconds."""
    trace, own = secrets.token_hex(16), secrets.token_hex(8)
    request = Classify().request([image])
    request = replace(request, headers=(*request.headers, ("traceparent", f"00-{trace}-{own}-01")))
    begin, began = time.time_ns(), time.perf_counter()
    try:
        response = await transport.send(request)
    except NoResponse as err:
        raise ScriptError(f"a request failed: {err}") from err
    end, latency_ms = time.time_ns(), 1000 * (time.perf_counter() - began)
    if not response.ok or Classify().seen(response.body, "") & DEGRADED:
        raise ScriptError(f"an answer has the status {response.status}, or lacks a member: {response.body[:500]!r}")
    return Span(trace, own, None, "client", "client", begin // 1000, end // 1000, {}, [], {}, False), latency_ms


async def send(url: str, images: Sequence[bytes], rate: float, seconds: float) -> list[Asked]:
    """Ask at Poisson's times for a number of seconds after the warm-up, whose requests do not count."""
    transport, begin, tasks = connect(url), time.perf_counter(), []
    due = takewhile(lambda offset: offset < WARM_UP_S + seconds, Arrivals(rate).offsets())
    try:
        for offset, image in zip(due, cycle(images), strict=False):
            await asyncio.sleep(begin + offset - time.perf_counter())
            tasks.append((offset, asyncio.create_task(ask(transport, image))))
        answers = await asyncio.gather(*(task for _, task in tasks))
    finally:
        await transport.close()
    return [answer for (offset, _), answer in zip(tasks, answers, strict=True) if offset >= WARM_UP_S]


def divided(clients: Sequence[Asked], traces: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
    """Take the means of the latency, its parts and each member's span, milliseconds, and count calls elsewhere.

    Raises:
        ScriptError: a trace is missing, or the parts differ from the latency by more than the tolerance.
    """
    steps: dict[str, float] = defaultdict(float)
    members: dict[str, list[float]] = defaultdict(list)
    elsewhere = 0
    for client, _ in clients:
        below = defaultdict(list)
        for span in traces.get(client.trace_id, ()):
            below[span.parent_id].append(span)
            if span.name.startswith(OPERATION):
                members[span.name.removeprefix(OPERATION).strip()].append(span.duration_us / 1000)
        if not below[client.span_id]:
            raise ScriptError(f"the trace {client.trace_id} was not written; send fewer requests per second")
        times = list(path(client, below))
        elsewhere += any(ELSEWHERE in name for name, _ in times)
        for name, duration_us in times:
            steps[name] += duration_us / 1000 / len(clients)
    latency = fmean(each for _, each in clients)
    if not abs(sum(steps.values()) - latency) <= TOLERANCE * latency:
        raise ScriptError(
            f"the parts sum to {sum(steps.values()):.2f} ms, and the client's latency is {latency:.2f} ms"
        )
    return {
        "requests": len(clients),
        "elsewhere": elsewhere,
        "latency_ms": latency,
        "steps_ms": dict(steps),
        "members_ms": {name: fmean(times) for name, times in members.items()},
    }
