"""Clients of a server that faults are done to: what each request was answered, and when."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answered:
    """One request, at its only attempt.

    Attributes:
        began: when it was sent, seconds of a monotonic clock.
        ended: when it was answered, or given up.
        failure: what went wrong; None for an answer.
        missing: the members that the answer lacks.
    """

    began: float
    ended: float
    failure: str | None
    missing: tuple[str, ...] = ()


class Watch(threading.Thread):
    """Clients that ask, each one request after the other, from `start` to `stop`."""

    def __init__(self, url: str, images: Sequence[bytes], clients: int) -> None:
        """Set the server's root, what is sent, and by how many."""
        super().__init__(name="clients", daemon=True)
        self._url, self._images, self._clients = url, images, clients
        self._over = threading.Event()
        self.began = time.monotonic()
        self.answered: list[Answered] = []

    def run(self) -> None:
        """Ask until the end."""
        self.began = time.monotonic()
        asyncio.run(self._ask_together())

    def stop(self) -> None:
        """End, once what has been asked is answered."""
        self._over.set()
        self.join()

    async def _ask_together(self) -> None:
        limits = httpx.Limits(max_connections=self._clients)
        async with httpx.AsyncClient(base_url=self._url, timeout=PATIENCE_S, limits=limits, verify=False) as client:  # noqa: S501
            await asyncio.gather(*(self._ask(client, number) for number in range(self._clients)))

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        for image in itertools.islice(itertools.cycle(self._images), number, None):
            if self._over.is_set():
                return
            began = time.monotonic()
            failure, missing = None, ()
            try:
                answer = await client.post("/classify", content=image)
                if answer.status_code == httpx.codes.OK:
                    missing = tuple(answer.json().get("missing", ()))
                else:
                    failure = f"{answer.status_code} {answer.text[:200]}"
            except httpx.HTTPError as err:
                failure = f"{type(err).__name__}: {err}"
            self.answered.append(Answered(began, time.monotonic(), failure, missing))
            if failure is not None:
                # A client that fails at once would otherwise count thousands of failures a second.
                await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Sight:
    """What the clients saw.

    Attributes:
        requests: how many were asked.
        failed: how many of them had no answer.
        degraded: how many answers lacked a member.
        dark_s: the longest time without an answer, seconds.
        p99_ms: the 99th percentile of the answers' latency, milliseconds.
        kept: how many answers a second came while the fault was done, as a fraction of those before.
        first_failure: what the first failed request was told.
    """

    requests: int
    failed: int
    degraded: int
    dark_s: float
    p99_ms: float
    kept: float
    first_failure: str


def sight(watch: Watch, began: float, ended: float) -> Sight:
    """What the clients of a watch that is over saw of a fault that began and ended at these times."""
    answers = [each for each in watch.answered if each.failure is None]
    failures = [each.failure for each in watch.answered if each.failure is not None]
    ends = [watch.began, *sorted(each.ended for each in answers)]
    latencies = [each.ended - each.began for each in answers] or [float("nan")]
    before = _rate(ends[1:], ends[1] if answers else began, began)
    return Sight(
        requests=len(watch.answered),
        failed=len(failures),
        degraded=sum(bool(each.missing) for each in answers),
        dark_s=max((later - sooner for sooner, later in itertools.pairwise(ends)), default=float("inf")),
        p99_ms=float(np.percentile(latencies, 99)) * 1000,
        kept=_rate(ends[1:], began, ended) / before if before else float("nan"),
        first_failure=failures[0] if failures else "",
    )


def _rate(ends: Sequence[float], since: float, until: float) -> float:
    """How many of these came a second after one time, up to another; not a number if there is no time between."""
    return sum(since < end <= until for end in ends) / (until - since) if until > since else float("nan")
