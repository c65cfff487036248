"""`GET /stats`: the last minute of the ingress replica that answers, in figures."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.member import OPERATION
from deployments.ingress.protocol import Report, Service
from deployments.ingress.routes import OF_KEYS, Route, Routes, encoded
from deployments.observe.observer import Call
from deployments.ray_internals import serve_client
from ensemble_features.page.stats import WINDOW_S, Period, Second, Stats

logger = logging.getLogger("ray.serve")

# The field of what features report.
ROLLOUT = "rollout"
PATH = "/stats"
# Seconds over which a rate is computed.
RATE_S = 5
# The controller is asked no more often than this, however many people look at the page.
KEPT_S = 2.0
# By deployment, their number by state and by the address of their machine.
Counts = Mapping[str, Mapping[tuple[str, str], int]]


class Requests(msgspec.Struct, frozen=True):
    """Requests for classifications."""

    per_second: Annotated[float, Meta(description=f"answered requests per second, over the last {RATE_S} s")]
    history: Annotated[list[int], Meta(description="answered requests in each second of the window, the oldest first")]
    outcomes: Annotated[
        dict[str, int], Meta(description="requests by their outcome: `ok`, `cancelled` or an error's code")
    ]
    p50_ms: Annotated[float | None, Meta(description="median time from arrival to answer, ms; null without requests")]
    p99_ms: Annotated[float | None, Meta(description="99th percentile of this time, ms")]


class Queue(msgspec.Struct, frozen=True):
    """The images in the ingress replica at the moment."""

    waiting: Annotated[int, Meta(description="images that wait for a batch")]
    in_flight: Annotated[int, Meta(description="admitted images without an answer yet")]
    longest_wait_ms: Annotated[float, Meta(description="longest wait of an image for its batch in the window, ms")]


class Batching(msgspec.Struct, frozen=True):
    """The formation of batches since the start."""

    at_a_time: Annotated[int, Meta(description="largest number of concurrent batches")]
    waits: Annotated[int, Meta(description="batches that waited for the clients of the previous batch")]
    waited_ms: Annotated[float, Meta(description="total time of these waits, ms")]


class MemberStats(msgspec.Struct, frozen=True):
    """A member's images in the window."""

    answered: Annotated[int, Meta(description="images that the member answered")]
    agreed: Annotated[
        int, Meta(description="images for which the member and the ensemble had the same most probable class")
    ]
    missing: Annotated[int, Meta(description="images answered without the member")]
    threads: Annotated[int | None, Meta(description="threads of an inference; null for a member on another server")] = (
        None
    )
    streams: Annotated[int | None, Meta(description="concurrent inferences")] = None


class LiveStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last minute of the ingress replica that answers."""

    replica: Annotated[str, Meta(description="the replica's id")]
    window_s: Annotated[int, Meta(description="length of the window, seconds")]
    requests: Requests
    queue: Queue
    batching: Batching
    batch_sizes: Annotated[dict[str, int], Meta(description="number of batches, by their number of images")]
    members: dict[str, MemberStats]
    replicas: Annotated[
        dict[str, dict[str, int]], Meta(description="replicas by deployment and state, as Serve reports them")
    ]
    machines: Annotated[
        dict[str, dict[str, int]],
        Meta(description="replicas by deployment and address of their machine, if there are several machines"),
    ] = {}
    exits: Annotated[dict[str, int], Meta(description="images by the last member that a cascade called")] = {}
    load_shed: Annotated[
        int, Meta(description="images for which a cascade called fewer members because of the load")
    ] = 0
    cache: Annotated[dict[str, int], Meta(description="images by cached (`hit`) or new (`miss`) predictions")] = {}
    nodes_ms: Annotated[dict[str, float], Meta(description="time of each node's work on batches, ms")] = {}
    past: Annotated[
        list[Period], Meta(description="the last ten minutes in periods of ten seconds, the oldest first")
    ] = []


class Replicas:
    """Asks Serve's controller for an application's replicas, and keeps its answer for a moment."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._asked = -KEPT_S
        self._known: Counts = {}

    async def __call__(self) -> Counts:
        """Count the replicas by deployment, state and machine; returns the last counts if the controller fails."""
        now = time.monotonic()
        if now - self._asked >= KEPT_S:
            self._asked = now
            try:
                self._known = await asyncio.to_thread(serve_client.replicas, self._application)
            except Exception:
                logger.debug("asking for the replicas", exc_info=True)
        return self._known


def routes(service: Service, stats: Stats, application: str, replica: str) -> Routes:
    """Serve the path `/stats` of a replica of the ingress."""
    ingress, counted = service.ingress, Replicas(application)
    reports = {name: report for each in service.features for name, report in each.reports.items()}
    model = _with(reports)

    async def answer(_: Request, _call: Call) -> Response:
        seconds = stats.recent()
        whole, (waited, waited_s) = Second.sum(seconds), ingress.queue.waited
        replicas = await counted()
        response = encoded(
            model(
                replica,
                WINDOW_S,
                _requests(seconds, whole),
                Queue(ingress.queue.waiting, ingress.admission.images, round(whole.longest_wait_s * 1000, 3)),
                Batching(ingress.settings.max_concurrent_batches, waited, round(waited_s * 1000, 3)),
                {str(size): count for size, count in sorted(whole.sizes.items())},
                _members(whole, stats.execution),
                _by(0, replicas),
                machines=_machines(replicas),
                exits=whole.exits,
                load_shed=whole.load_shed,
                cache=whole.cache,
                nodes_ms={node: ns / 1e6 for node, ns in whole.nodes_ns.items()},
                past=stats.past(),
                **({ROLLOUT: {name: report.read() for name, report in reports.items()}} if reports else {}),
            )
        )
        response.headers["Cache-Control"] = "no-store"
        return response

    summary = "Figures of the ingress replica that answers"
    return {PATH: Route("GET", answer, summary, (model,), OF_KEYS)}


def _with(reports: Mapping[str, Report]) -> Any:
    """Extend the answer's model by the features' reports since the start."""
    if not reports:
        return LiveStats
    fields = [(name, report.model) for name, report in reports.items()]
    model = msgspec.defstruct("RolloutStats", fields, frozen=True)
    return msgspec.defstruct(LiveStats.__name__, [(ROLLOUT, model)], bases=(LiveStats,), frozen=True, kw_only=True)


def _by(place: int, replicas: Counts) -> dict[str, Counter[str]]:
    """Count each deployment's replicas by their state (place 0) or by their machine (place 1)."""
    found: dict[str, Counter[str]] = {name: Counter() for name in replicas}
    for name, each in replicas.items():
        for key, count in each.items():
            found[name][key[place]] += count
    return found


def _machines(replicas: Counts) -> dict[str, Counter[str]]:
    found = _by(1, replicas)
    return found if len({machine for each in found.values() for machine in each if machine}) > 1 else {}


def _requests(seconds: Sequence[Second], whole: Second) -> Requests:
    history = [second.outcomes.total() for second in seconds]
    latest = history[-RATE_S:]
    return Requests(sum(latest) / max(len(latest), 1), history, whole.outcomes, *whole.quantiles_ms(0.5, 0.99))


def _members(whole: Second, execution: Mapping[str, tuple[Any, Any]]) -> dict[str, MemberStats]:
    votes, missing = whole.predictions, whole.missing
    how = {node.removeprefix(OPERATION): threads_and_streams for node, threads_and_streams in execution.items()}
    return {
        name: MemberStats(
            votes[name, True] + votes[name, False], votes[name, True], missing[name], *how.get(name, (None, None))
        )
        for name in sorted({*missing, *(name for name, _ in votes)})
    }
