"""Requests whose traces a client begins, and where their time goes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, takewhile
from statistics import fmean
from typing import Any

from ensemble_capacity.load.load import Arrivals
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED
from ensemble_capacity.plan.server import WARM_UP_S
from ensemble_serving.transports import NoResponse, Transport, connect
from lab.experiments.path import ELSEWHERE, path
from scripts.errors import ScriptError
from scripts.trace.spans import Span

# By how much of the latency its parts may miss it.
TOLERANCE = 0.03
Asked = tuple[Span, float]


async def ask(transport: Transport, image: bytes) -> Asked:
    """Have an image classified: the client's span, and the latency by a clock of its own, milliseconds."""
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
    """Ask at Poisson's times, for so many seconds after the warm-up, whose requests do not count."""
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
    """The mean latency and parts of requests, milliseconds, and how many requests waited for another server.

    Raises:
        ScriptError: a trace is missing, or the parts differ from the latency by more than the tolerance.
    """
    steps: dict[str, float] = defaultdict(float)
    elsewhere = 0
    for client, _ in clients:
        below = defaultdict(list)
        for span in traces.get(client.trace_id, ()):
            below[span.parent_id].append(span)
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
    return {"requests": len(clients), "elsewhere": elsewhere, "latency_ms": latency, "steps_ms": dict(steps)}
