"""Admission: checked as a request comes, before its body is read, and once more with its images."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from deployments.contract import clock
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import (
    InvalidParameter,
    Overloaded,
    OverShare,
)
from deployments.contract.image_probe import PLAIN_PIXELS
from deployments.contract.options import LOWER, Options
from deployments.ingress.options import DEFAULT
from deployments.ingress.pacing import RejectionPacer, ThroughputEstimator
from deployments.ingress.settings import IngressSettings
from deployments.ingress.uploads import GRACE_S, Upload, Uploads

# For how long a client that was refused is taken to want a place, seconds.
WANTS_S = 2.0
# The part of the places that all requests may fill before the lower class is refused; that class may fill the least
# part of them at any time, so that it does not starve.
MOST_WITH_LOWER, LEAST_OF_LOWER = 2, 16


class AdmissionController:
    """Admits requests, or refuses them, and counts images in flight: admitted and not answered yet.

    Attributes:
        settings: the limits in force.
        images: in flight.
        lower: images in flight of the lower class.
        size: bytes of images in flight, and of bodies that are still arriving.
        pixels: pixels of images in flight that are decoded in processes of their own.
    """

    def __init__(self, settings: IngressSettings) -> None:
        self.settings = settings
        self.images = self.lower = self.size = self.pixels = 0
        self._throughput, self._shares, self._refusals = ThroughputEstimator(), Shares(), RejectionPacer()
        self._uploads = Uploads()

    def check_count(self, images: int) -> None:
        """Raise InvalidParameter if a request can't hold `images` images."""
        # More than may be in flight would never be admitted, however often the client tries again.
        most = min(self.settings.max_parts, self.settings.max_in_flight)
        if not 1 <= images <= most:
            raise InvalidParameter(f"a request holds 1 to {most} images; this one has {images}")

    async def admit(self, by: Caller = ANYONE, is_lower: bool = False) -> None:
        """Raise unless one more image would be admitted; called as a request comes, and nothing is counted yet.

        Where many are refused, a refusal waits for its turn; if a place becomes free until then, there is none.

        Raises:
            Overloaded: no more is admitted, or no more of the lower class.
            OverShare: most places are taken, and the caller has its share of them.
        """
        try:
            self.check(by=by, is_lower=is_lower)
        except (Overloaded, OverShare) as err:
            if not await self._refusals.hold(self._throughput.pace, err.retry_after_s or 0.0):
                raise
            self.check(by=by, is_lower=is_lower)

    @asynccontextmanager
    async def arriving(self, options: Options = DEFAULT, by: Caller = ANYONE) -> AsyncIterator[Upload]:
        """Admit a request whose body follows; its bytes count as they come, until the block ends.

        It must arrive within its own time or the configured one, whichever is shorter.

        Raises:
            OverShare: as of `admit`.
            Overloaded: as of `admit`, too many requests arrive, or the bytes that came exceed the limit.
            DeadlineExceeded: it did not arrive in its time.
            SlowBody: it came at less than the least rate.
        """
        await self.admit(by, options.priority >= LOWER)
        # A caller may wait long for its answer, but not take long to send the request.
        most_ms, start = self.settings.timeout_ms, asyncio.get_running_loop().time()
        timeout_s = min(options.timeout_ms or most_ms, most_ms) / 1000
        limit = asyncio.timeout_at(start + min(GRACE_S, timeout_s))
        arrival = Upload(by, clock.now(), start, start + timeout_s, self.settings.min_body_rate, limit)
        if (count := len(self._uploads)) >= self.settings.max_arriving:
            if (other := self._uploads.giving_way(by.sender)) is None:
                raise self.refusal(f"{count} requests are arriving; no more are admitted at a time", by)
            self._preempt(other)
        self._uploads[arrival] = None
        try:
            async with arrival.limit:
                yield arrival
        except TimeoutError as err:
            raise arrival.error from err
        finally:
            self._uploads.pop(arrival, None)
            self.size -= arrival.size

    def arrived(self, upload: Upload, size: int, whole: bool = False) -> None:
        """Count more bytes of an upload, the last ones if it is `whole`; raises Overloaded if they exceed the limit."""
        if upload.preempted is not None:
            raise upload.preempted
        self.check_size(size, upload.by)
        self.size += size
        upload.size += size
        if not whole:
            # To set a timer anew costs more than the rest of this, and most bodies come in one piece.
            upload.limit.reschedule(upload.due())

    def _preempt(self, upload: Upload) -> None:
        """End an upload in favour of a newer one, which may take its place and its bytes at once."""
        del self._uploads[upload]
        # Its own time may be over in this very turn of the loop.
        if not upload.limit.expired():
            reason = "too much arrives at a time, and this request is the oldest of the sender with most of it"
            upload.preempted = self.refusal(reason, upload.by)
            self.size -= upload.size
            upload.size = 0
            upload.limit.reschedule(asyncio.get_running_loop().time())

    def check(
        self,
        images: int = 1,
        size: int = 0,
        by: Caller = ANYONE,
        left_s: float = math.inf,
        is_lower: bool = False,
    ) -> None:
        """Raise unless these images and bytes are admitted; nothing is counted yet.

        Args:
            images: how many.
            size: their bytes together.
            by: whose they are.
            left_s: the time in which they are to be answered, seconds.
            is_lower: whether they are of the lower class, for which fewer places are.

        Raises:
            Overloaded: they exceed the limit, or the images in flight take longer than they have left.
            OverShare: most places are taken, and they exceed the caller's share of them.
        """
        limits, counted = self.settings, f"{self.images} images are in flight"
        total = self.images + images
        if total > limits.max_in_flight:
            raise self.refusal(f"{counted}; at most {limits.max_in_flight} are admitted", by)
        if is_lower:
            self._check_lower(images, by)
        self.check_size(size, by)
        if 2 * total > limits.max_in_flight and by.client:
            self._check_share(images, by, limits.max_in_flight)
        # The usual class does not wait for the lower one.
        ahead = self.images if is_lower else self.images - self.lower
        if ahead and (pace := self._throughput.proven_pace) and 0 < left_s < ahead / pace:
            raise self.refusal(f"{counted}, at {pace:.3g} a second; this request has {left_s:.3f} s left")

    def check_size(self, size: int, by: Caller = ANYONE) -> None:
        """Raise Overloaded if these bytes more exceed the limit, unless uploads of a larger sender give way."""
        most = self.settings.max_in_flight_bytes
        while self.size + size > most:
            if (other := self._uploads.giving_way_to_bytes(by.sender, size)) is None:
                raise self.refusal(f"{self.size} bytes are in flight; at most {most} are admitted", by)
            self._preempt(other)

    def _check_lower(self, images: int, by: Caller) -> None:
        """Raise Overloaded if most places are taken, by whomever, and the lower class has its least part of them."""
        places = self.settings.max_in_flight
        is_full = self.images and MOST_WITH_LOWER * (self.images + images) > places
        if is_full and self.lower + images > max(1, places // LEAST_OF_LOWER):
            most = places // MOST_WITH_LOWER
            raise self.refusal(f"{self.images} images are in flight; the lower class is refused beyond {most}", by)

    def _check_share(self, images: int, by: Caller, places: int) -> None:
        if self._shares.exceeds(by.client, images, places):
            wait_s = self._retry_after_s()
            raise OverShare(
                f"{self.images} images are in flight, and your share of {places} places is taken; "
                f"try again in {math.ceil(wait_s)} s",
                retry_after_s=wait_s,
            )

    def refusal(self, reason: str, by: Caller = ANYONE) -> Overloaded:
        """Make the error of a refused request, which says when to try again."""
        self._shares.want(by.client)
        wait_s = self._retry_after_s()
        return Overloaded(f"{reason}; try again in {math.ceil(wait_s)} s", retry_after_s=wait_s)

    def _retry_after_s(self) -> float:
        return self._throughput.retry_after_s(self.images, self.settings.retry_after_s)

    @contextmanager
    def admitted(
        self,
        images: int,
        size: int,
        by: Caller = ANYONE,
        left_s: float = math.inf,
        is_lower: bool = False,
    ) -> Iterator[None]:
        """Admit images, or raise as `check` does, and count them for as long as the block takes."""
        self.check(images, size, by, left_s, is_lower)
        self._count(images, size, by, is_lower)
        try:
            yield
        finally:
            self._count(-images, -size, by, is_lower)

    @contextmanager
    def isolated(self, pixels: int) -> Iterator[None]:
        """Count `ImageProbe.isolated_pixels` of a request's images for as long as the block takes.

        Raises:
            Overloaded: with others they exceed the limit. The pixels of one request are admitted by themselves, however
                many they are: each image is within its own limit.
        """
        most = self.settings.max_in_flight_pixels
        if self.pixels and self.pixels + pixels > most:
            raise self.refusal(
                f"images of {self.pixels} pixels wait to be decoded; at most {most} are admitted, not counting JPEGs "
                f"of up to {PLAIN_PIXELS}"
            )
        self.pixels += pixels
        try:
            yield
        finally:
            self.pixels -= pixels

    def answered(self, images: int) -> None:
        """Count images in flight that are answered now, for the rate that the wait of others is predicted by."""
        limits = self.settings
        passing = min(limits.max_batch_size * limits.max_concurrent_batches, limits.max_in_flight)
        # All batches may end at about the same time.
        is_busy = self.images >= max(2, passing // 4)
        if is_busy or self._throughput.since is not None:
            self._throughput.left(images, is_busy)

    def _count(self, images: int, size: int, by: Caller, is_lower: bool) -> None:
        if by.client:
            self._shares.add(by.client, images)
        self.images += images
        self.lower += images if is_lower else 0
        self.size += size


class Shares:
    """The images in flight of each client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._images: Counter[str] = Counter()
        self._wanted: dict[str, float] = {}

    def exceeds(self, client: str, images: int, places: int) -> bool:
        """Tell whether `images` more would exceed a client's share of the places."""
        now = self._clock()
        self._wanted = {name: since for name, since in self._wanted.items() if now - since < WANTS_S}
        wanting = len({client, *self._images, *self._wanted})
        return self._images[client] + images > max(1, places // wanting)

    def want(self, client: str) -> None:
        """Note that a client was refused, and so wants a place."""
        if client:
            self._wanted[client] = self._clock()

    def add(self, client: str, images: int) -> None:
        """Count images of a client that are admitted, or, below zero, answered."""
        self._images[client] += images
        if not self._images[client]:
            del self._images[client]
