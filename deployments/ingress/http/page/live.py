"""`GET /stats`: the last minute of the ingress replica that answers, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.extension import Report
from deployments.ingress.http.routes import Route, Routes, encoded
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.observe.stats import WINDOW_S, Second, Stats

K = TypeVar("K")
# The field of what capabilities report.
ROLLOUT = "rollout"
PATH = "/stats"
# A rate is that of the last so many seconds.
RATE_S = 5


class Requests(msgspec.Struct, frozen=True):
    """Requests for classifications."""

    per_second: Annotated[float, Meta(description=f"of the last {RATE_S} s")]
    history: Annotated[list[int], Meta(description="answered in each second of the window, the oldest first")]
    outcomes: Annotated[dict[str, int], Meta(description="by `ok`, `cancelled` or an error's code")]
    p50_ms: Annotated[float | None, Meta(description="median time from arrival to answer; null for no request")]
    p99_ms: Annotated[float | None, Meta(description="99 % took no longer")]


class Queue(msgspec.Struct, frozen=True):
    """What waits now."""

    waiting: Annotated[int, Meta(description="images that no batch has taken yet")]
    in_flight: Annotated[int, Meta(description="images that are admitted and not answered")]
    longest_wait_ms: Annotated[float, Meta(description="of an image for its batch, in the window")]


class MemberStats(msgspec.Struct, frozen=True):
    """What a member did."""

    answered: Annotated[int, Meta(description="images")]
    agreed: Annotated[int, Meta(description="images whose most probable class was the ensemble's as well")]
    missing: Annotated[int, Meta(description="images answered without it")]


class LiveStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last minute of the ingress replica that answers."""

    replica: Annotated[str, Meta(description="its id")]
    window_s: int
    requests: Requests
    queue: Queue
    batch_sizes: Annotated[dict[str, int], Meta(description="how many batches had so many images")]
    members: dict[str, MemberStats]
    replicas: Annotated[dict[str, dict[str, int]], Meta(description="by deployment and state, as Serve tells it")]


def live(service: Service) -> Routes:
    """The path `/stats`, if somebody counts."""
    return {} if service.stats is None else Live(service, service.stats).routes()


class Live:
    """Answers `/stats`."""

    def __init__(self, service: Service, stats: Stats) -> None:
        """Set what is served, and who counts."""
        self._service, self._stats = service, stats
        self._reports = {name: report for each in service.extensions for name, report in each.reports.items()}
        self._model = _with(self._reports)

    def routes(self) -> Routes:
        """The one path."""
        return {PATH: Route("GET", self._answer, "The last minute of the ingress replica that answers", (self._model,))}

    async def _answer(self, _: Request, _call: Call) -> Response:
        ingress = self._service.ingress
        seconds = self._stats.recent()
        waits = max((second.longest_wait_s for second in seconds), default=0.0)
        told = self._model(
            self._service.replica,
            WINDOW_S,
            _requests(seconds),
            Queue(ingress.waiting, ingress.in_flight, round(waits * 1000, 3)),
            {str(size): count for size, count in sorted(_sum(second.sizes for second in seconds).items())},
            _members(seconds),
            {name: dict(states) for name, states in (await self._service.replicas()).items()},
            **({ROLLOUT: {name: report.read() for name, report in self._reports.items()}} if self._reports else {}),
        )
        response = encoded(told)
        response.headers["Cache-Control"] = "no-store"
        return response


def _with(reports: Mapping[str, Report]) -> Any:
    """The model of the answer, with what capabilities report, since the start."""
    if not reports:
        return LiveStats
    fields = [(name, report.model) for name, report in reports.items()]
    model = msgspec.defstruct("RolloutStats", fields, frozen=True)
    return msgspec.defstruct(LiveStats.__name__, [(ROLLOUT, model)], bases=(LiveStats,), frozen=True)


def _sum(counters: Iterable[Counter[K]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _requests(seconds: Sequence[Second]) -> Requests:
    history = [second.outcomes.total() for second in seconds]
    latest = history[-RATE_S:]
    durations = [duration for second in seconds for duration in second.durations]
    p50, p99 = (round(float(q) * 1000, 3) for q in np.quantile(durations, [0.5, 0.99])) if durations else (None, None)
    outcomes = dict(_sum(second.outcomes for second in seconds))
    return Requests(sum(latest) / max(len(latest), 1), history, outcomes, p50, p99)


def _members(seconds: Sequence[Second]) -> dict[str, MemberStats]:
    votes, missing = _sum(second.votes for second in seconds), _sum(second.missing for second in seconds)
    names = sorted({*missing, *(name for name, _ in votes)})
    return {
        name: MemberStats(votes[name, True] + votes[name, False], votes[name, True], missing[name]) for name in names
    }
