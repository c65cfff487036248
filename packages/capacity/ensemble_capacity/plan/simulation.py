"""A discrete-event simulation of a server and its clients: when each request is answered, by the profile's durations.

When a batch leaves is decided by the server's own `Batching`, whose clock is the simulation's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec
import numpy as np

from deployments.contract.names import INGRESS
from deployments.ingress.batcher import TICK_S
from deployments.ingress.batching import Batching
from ensemble_capacity.load.load import Closed, Mode
from ensemble_capacity.plan.clock import Machine, Pool, Then
from ensemble_capacity.plan.graph import HOPS, MEDIAN, Graph, Remote, hop_ms, remotes
from ensemble_capacity.plan.profile import SHARES, Overhead, Profile, Served
from ensemble_capacity.plan.setting import Setting

# Requests that are simulated, and the share of them that comes before those that count.
REQUESTS, WARM_UP = 4000, 0.15
REFUSED_S = 1.0
# The pauses of batches are drawn from so many.
PAUSES = 256


@dataclass(slots=True)
class Request:
    """A request: when it was due, and when the client had the response, seconds; whether it was refused."""

    due: float
    done: float = 0.0
    refused: bool = False


Answered = Callable[[Request], None]


class Replica:
    """A replica of the ingress: its event loop, its queue and its batches in flight."""

    def __init__(
        self, machine: Machine, setting: Setting, graph: Graph, costs: Served, pause_s: Callable[[], float]
    ) -> None:
        """Set what it serves, what it costs, and for how long nothing happens to a batch."""
        self._machine, self._setting, self._graph = machine, setting.ingress, graph
        self._costs, self._pause_s = costs, pause_s
        self.loop = Pool(machine)
        self._batching = Batching(lambda: setting.ingress, lambda: machine.now)
        self._waiting: deque[tuple[Request, Answered]] = deque()
        self._in_flight = 0
        self._leaves_at = float("inf")
        self.batches = self.images = 0

    def take(self, request: Request, then: Answered) -> None:
        """Answer a request by calling `then`."""
        half = self._costs.ingress.image_ms / 2000
        if self._in_flight >= self._setting.max_in_flight:
            request.refused = True
            self.loop.do(half, lambda: then(request))
            return
        self._in_flight += 1
        self.loop.do(half, lambda: self._submit(request, then))

    def _submit(self, request: Request, then: Answered) -> None:
        self._waiting.append((request, then))
        self._batching.arrived(len(self._waiting))
        if len(self._waiting) >= self._setting.max_batch_size:
            self._dispatch()
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        leaves_at = self._batching.leaves_at(len(self._waiting))
        if leaves_at is None or leaves_at >= self._leaves_at:
            return
        self._leaves_at = leaves_at
        if leaves_at > self._machine.now + TICK_S:
            self._machine.at(leaves_at, lambda: self._is_time(leaves_at))
        else:
            # Not before the requests are read that have come already.
            self.loop.do(0, lambda: self._is_time(leaves_at))

    def _is_time(self, leaves_at: float) -> None:
        if leaves_at == self._leaves_at:
            self._dispatch()

    def _dispatch(self) -> None:
        self._leaves_at = float("inf")
        while (leaves_at := self._batching.leaves_at(len(self._waiting))) is not None:
            if leaves_at > self._machine.now + TICK_S:
                self._set_timer()
                return
            self._begin([self._waiting.popleft() for _ in range(min(len(self._waiting), self._setting.max_batch_size))])

    def _begin(self, batch: list[tuple[Request, Answered]]) -> None:
        left, images, pause_s = self._batching.left(len(batch)), len(batch), self._pause_s()
        half = self._costs.ingress.batch_ms / 2000
        self.batches += 1
        self.images += images
        remaining = iter(batch)

        def answered(count: int) -> None:
            nonlocal images
            images -= count
            leaving = [next(remaining) for _ in range(count)]
            ended = None if images else partial(self._ended, len(batch), left)
            self.loop.do(0 if images else half, lambda: self._deliver(leaving, ended))

        def begin() -> None:
            self._machine.at(self._machine.now + pause_s, lambda: self._graph.run(len(batch), answered))

        self.loop.do(half, begin)

    def _deliver(self, leaving: list[tuple[Request, Answered]], ended: Then | None) -> None:
        self._in_flight -= len(leaving)
        for request, then in leaving:
            self.loop.do(self._costs.ingress.image_ms / 2000, partial(then, request))
        # The event loop sends the responses before it notes that the batch is done.
        if ended is not None:
            self.loop.do(0, ended)

    def _ended(self, images: int, left: float) -> None:
        self._batching.ended(images, left)
        self._dispatch()


def overheads(setting: Setting, profile: Profile) -> Served:
    """What the server costs in a setting: between the two placements that were measured, by the separate nodes.

    What a request waits for in calls to separate nodes is no part of its delays; see `hop_ms`.
    """
    inline, separate = profile.served["inline"], profile.served["separate"]
    share, hops = len(setting.separate) / len(setting.placements), HOPS * hop_ms(profile)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    low, high = map(msgspec.structs.astuple, (inline.ingress, separate.ingress))
    names = ("proxy_ms", "client_ms", "background", "ingress_mb", "rest_mb", "speed")
    mixed = {name: between(getattr(inline, name), getattr(separate, name)) for name in names}
    delays = tuple(
        between(one, max(0.0, other - hops)) for one, other in zip(inline.delays_ms, separate.delays_ms, strict=True)
    )
    ingress = Overhead(*map(between, low, high))
    return msgspec.structs.replace(separate, ingress=ingress, delays_ms=delays, **mixed)


class Simulation:
    """A server on a machine, and its clients.

    Attributes:
        machine: the clock.
        requests: those that were answered or refused, in that order.
        replicas: of the ingress.
    """

    def __init__(self, setting: Setting, profile: Profile, cores: int, clients_here: bool, seed: int = 0) -> None:
        """Set what is served, by which durations, on how many cores, and whether its clients compute on them, too."""
        random = Random(seed)
        self.costs = overheads(setting, profile)
        # What disturbs one request holds up its batch.
        delays_ms = np.interp((np.arange(PAUSES) + 0.5) / PAUSES, SHARES, self.costs.delays_ms)
        pauses_s = (np.maximum(0, delays_ms - self.costs.delays_ms[MEDIAN]) / 1000).tolist()
        self.machine = Machine(max(0.1, (cores - self.costs.background) * self.costs.speed))
        self._remotes: dict[str, Remote] = remotes(self.machine, setting, profile)
        self.replicas = [
            Replica(
                self.machine,
                setting,
                Graph(self.machine, setting, profile, self._remotes),
                self.costs,
                lambda: random.choice(pauses_s),
            )
            for _ in range(setting.count(INGRESS))
        ]
        self._proxy, self._client = Pool(self.machine), Pool(self.machine)
        self._client_s = self.costs.client_ms / 2000 if clients_here else 0.0
        self._delay_s = self.costs.delays_ms[MEDIAN] / 2000
        self._turn = 0
        self.requests: list[Request] = []

    def _send(self, then: Answered) -> None:
        request, delay = Request(self.machine.now), self._delay_s
        self._turn += 1
        replica = self.replicas[self._turn % len(self.replicas)]

        def received(request: Request) -> None:
            request.done = self.machine.now
            self.requests.append(request)
            then(request)

        def back(request: Request) -> None:
            later = self.machine.now + delay
            self.machine.at(later, lambda: self._client.do(self._client_s, lambda: received(request)))

        def forward() -> None:
            self._proxy.do(
                self.costs.proxy_ms / 1000,
                lambda: self.machine.at(self.machine.now + delay, lambda: replica.take(request, back)),
            )

        self._client.do(self._client_s, forward)

    def _closed(self, clients: int) -> None:
        def again(request: Request) -> None:
            later = self.machine.now + (REFUSED_S if request.refused else 0.0)
            self.machine.at(later, lambda: self._send(again))

        for _ in range(clients):
            self._send(again)

    def _open(self, offsets: Iterator[float]) -> None:
        def next_one() -> None:
            self._send(lambda _: None)
            if (following := next(offsets, None)) is not None:
                self.machine.at(following, next_one)

        if (first := next(offsets, None)) is not None:
            self.machine.at(first, next_one)

    def run(self, load: Mode, requests: int = REQUESTS) -> None:
        """Let clients send until so many requests have been answered."""
        if isinstance(load, Closed):
            self._closed(load.concurrency)
        else:
            self._open(load.offsets())
        self.machine.run(lambda: len(self.requests) >= requests)

    @property
    def used_s(self) -> float:
        """CPU time of the server so far, seconds."""
        return self.machine.used_s - self._client.used_s + self.costs.background * self.machine.now

    @property
    def clients_used(self) -> float:
        """Cores that the clients use, on average."""
        return self._client.used_s / self.machine.now

    def busy(self) -> dict[str, float]:
        """The share of the time in which each of the threads computed that all requests must pass."""
        loops = [replica.loop.busy(self.machine.now) for replica in self.replicas]
        return {"HAProxy": self._proxy.busy(self.machine.now), "event loop of the ingress": max(loops)}
