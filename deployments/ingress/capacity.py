"""Admission: checked as a request comes, before its body is read, and once more with its images."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import InvalidParameter, Overloaded, OverShare
from deployments.contract.options import Options
from deployments.ingress.arrival import Arrival
from deployments.ingress.in_flight import InFlightLimit
from deployments.ingress.options import DEFAULT
from deployments.ingress.queue import Queued
from deployments.ingress.refusals import Refusals
from deployments.ingress.settings import IngressSettings


class Capacity:
    """Admits requests, or refuses them.

    Attributes:
        settings: the limits in force.
        in_flight: what is admitted and not answered yet.
    """

    def __init__(self, settings: IngressSettings) -> None:
        self.settings = settings
        self.in_flight = InFlightLimit(lambda: self.settings)
        self._refusals = Refusals()
        # A dictionary keeps their order.
        self._arriving: dict[Arrival, None] = {}

    def timeout_s(self, options: Options) -> float:
        """How long a request with these options may take, seconds."""
        return (options.timeout_ms or self.settings.timeout_ms) / 1000

    def check_count(self, images: int) -> None:
        """Raise InvalidParameter if a request can't hold so many images."""
        if not 1 <= images <= self.settings.max_parts:
            raise InvalidParameter(f"a request holds 1 to {self.settings.max_parts} images; this one has {images}")

    async def admit(self, by: Caller = ANYONE) -> None:
        """Raise unless one more image would be admitted; called as a request comes, and nothing is counted yet.

        Where many are refused, a refusal waits for its turn; if a place becomes free until then, there is none.

        Raises:
            Overloaded: no more is admitted.
            OverShare: most places are taken, and the caller has its share of them.
        """
        try:
            self.in_flight.check(by=by)
        except (Overloaded, OverShare) as err:
            if not await self._refusals.hold(self.in_flight.pace, err.retry_after_s or 0.0):
                raise
            self.in_flight.check(by=by)

    @asynccontextmanager
    async def arriving(self, options: Options = DEFAULT, by: Caller = ANYONE) -> AsyncIterator[Arrival]:
        """Admit a request whose body follows; its bytes count as they come, until the block ends.

        It must arrive within its own time or the configured one, whichever is shorter.

        Raises:
            OverShare: as of `admit`.
            Overloaded: as of `admit`, too many requests arrive, or the bytes that came exceed what is admitted.
            DeadlineExceeded: it did not arrive in its time.
            SlowBody: it came at less than the least rate.
        """
        await self.admit(by)
        if len(self._arriving) >= self.settings.max_arriving and not self._end_oldest():
            reason = f"{len(self._arriving)} requests are arriving; no more are admitted at a time"
            raise self.in_flight.refusal(reason, by)
        # A caller may wait long for its answer, but not take long to send the request.
        timeout_s = min(self.timeout_s(options), self.timeout_s(DEFAULT))
        arrival = Arrival(self.in_flight, by, timeout_s, self.settings.min_body_rate)
        self._arriving[arrival] = None
        try:
            async with arrival.limit:
                yield arrival
        except TimeoutError as err:
            raise arrival.error from err
        finally:
            self._arriving.pop(arrival, None)
            self.in_flight.size -= arrival.size

    def _end_oldest(self) -> bool:
        """End the oldest arrival; False if even that one is young."""
        oldest = next(iter(self._arriving))
        if not oldest.give_way():
            return False
        del self._arriving[oldest]
        return True

    def admitted(self, images: Sequence[Queued], left_s: float, by: Caller = ANYONE) -> AbstractContextManager[None]:
        """Admit all of a request's images or none, and count them for as long as the block takes.

        Raises:
            Overloaded: they exceed what is admitted, or what is in flight takes longer than they have left, seconds.
            OverShare: as of `admit`.
        """
        count, size = len(images), sum(len(each.image) for each in images)
        # An image that declares more than the limit by itself is refused by its size, and takes no time.
        most = self.settings.max_in_flight_pixels
        pixels = sum(each.isolated_pixels for each in images if each.isolated_pixels <= most)
        return self.in_flight.held(count, size, by, pixels, left_s)
