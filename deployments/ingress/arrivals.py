"""Requests whose bodies are on their way: they have room of their own, a slowest pace, and the oldest gives way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import DeadlineExceeded, EnsembleError, Overloaded, OverShare, SlowBody
from deployments.ingress.admission import Admission
from deployments.ingress.refusals import Refusals
from deployments.ingress.settings import IngressSettings

# What a connection may take before a body's pace counts, and how long a body is not asked to give way, seconds.
GRACE_S, YOUNG_S = 5.0, 0.25


class Arrival:
    """A request whose body is still on its way.

    Attributes:
        began: when it began to arrive, seconds since the epoch.
        size: what has come so far, bytes.
        limit: ends it.
        error: what it is told if it is ended now.
    """

    def __init__(self, admission: Admission, by: Caller, timeout_s: float, slowest: int) -> None:
        """Set where its bytes take room, whose it is, its time, and the slowest pace in bytes a second."""
        self.began = time.time()
        self.size = 0
        self._admission, self._by, self._slowest = admission, by, slowest
        self._start = asyncio.get_running_loop().time()
        self._end = self._start + timeout_s
        self.error: EnsembleError = DeadlineExceeded("the request's body did not arrive in its time; send it faster")
        self.limit = asyncio.timeout_at(self._due())

    def grow(self, size: int, whole: bool = False) -> None:
        """Take room for so many bytes more, the last if it is `whole`; raises Overloaded if there is none."""
        self._admission.check_size(size, self._by)
        self._admission.size += size
        self.size += size
        if not whole:
            # To set a timer anew costs more than the rest of this, and most bodies are there at once.
            self.limit.reschedule(self._due())

    def give_way(self) -> bool:
        """End, in favour of a newer one, unless this one has only just begun."""
        now = asyncio.get_running_loop().time()
        if now < self._start + YOUNG_S:
            return False
        reason = "too many requests are arriving, of which this one is the oldest"
        self.error = self._admission.refusal(reason, self._by)
        self.limit.reschedule(now)
        return True

    def _due(self) -> float:
        """When it ends unless more of it comes, in the loop's time."""
        due = self._start + GRACE_S + self.size / self._slowest
        if due < self._end:
            self.error = SlowBody(f"the body came at less than {self._slowest} bytes a second; send it faster")
        return min(due, self._end)


class Arrivals:
    """The requests that are arriving."""

    def __init__(self, admission: Admission, settings: Callable[[], IngressSettings]) -> None:
        """Set where their bytes take room, and where the limits in force are read."""
        self._admission, self._settings = admission, settings
        self._refusals = Refusals()
        # A dictionary, because it keeps their order.
        self._all: dict[Arrival, None] = {}

    async def admit(self, by: Caller = ANYONE) -> None:
        """Raise unless there is room for an image more; nothing is counted yet.

        Where many are refused, a refusal waits for its turn, and for a place until then.

        Raises:
            Overloaded: there is no room.
            OverShare: as of `Admission.check`.
        """
        try:
            self._admission.check(by=by)
        except (Overloaded, OverShare) as err:
            if not await self._refusals.hold(self._admission.pace, err.retry_after_s or 0.0):
                raise
            self._admission.check(by=by)

    @asynccontextmanager
    async def arriving(self, timeout_s: float, by: Caller = ANYONE) -> AsyncIterator[Arrival]:
        """Room for a request while its body arrives; its bytes count as they come.

        Raises:
            OverShare: as of `admit`.
            Overloaded: there is no room for it, for an image more, or for the bytes that came.
            DeadlineExceeded: it did not arrive in its time.
            SlowBody: it came at less than the slowest pace.
        """
        settings = self._settings()
        await self.admit(by)
        if len(self._all) >= settings.max_arriving and not self._make_room():
            raise self._admission.refusal(f"{len(self._all)} requests are arriving; no more are admitted at a time", by)
        arrival = Arrival(self._admission, by, timeout_s, settings.min_body_rate)
        self._all[arrival] = None
        try:
            async with arrival.limit:
                yield arrival
        except TimeoutError as err:
            raise arrival.error from err
        finally:
            self._all.pop(arrival, None)
            self._admission.size -= arrival.size

    def _make_room(self) -> bool:
        """End the oldest; False if even that one is young."""
        oldest = next(iter(self._all))
        if not oldest.give_way():
            return False
        del self._all[oldest]
        return True
