"""The in-flight limit: counts images that are admitted and not answered, and refuses those that exceed it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.declared import PLAIN_PIXELS
from deployments.contract.errors import Overloaded, OverShare
from deployments.ingress.drain import Drain
from deployments.ingress.settings import IngressSettings
from deployments.ingress.shares import Shares


class InFlightLimit:
    """Counts images, bytes and pixels, and refuses what exceeds the limits.

    Attributes:
        images: admitted and not yet answered.
        size: their bytes, and those of bodies that are still arriving.
        pixels: what those of them count that are decoded in processes of their own.
    """

    def __init__(self, settings: Callable[[], IngressSettings]) -> None:
        """Set where the limits in force are read."""
        self._settings = settings
        self.images = 0
        self.size = 0
        self.pixels = 0
        self._drain = Drain()
        self._shares = Shares()

    @property
    def pace(self) -> float:
        """Images that are answered per second; 0 if it is not known."""
        return self._drain.pace

    def check(
        self, images: int = 1, size: int = 0, by: Caller = ANYONE, pixels: int = 0, left_s: float = math.inf
    ) -> None:
        """Raise unless these images and bytes are admitted; nothing is counted yet.

        Args:
            images: how many.
            size: their bytes together.
            by: whose they are.
            pixels: see `Declared.isolated_pixels`, of all together.
            left_s: the time in which they are to be answered, seconds.

        Raises:
            Overloaded: they exceed what is admitted, or what is in flight takes longer than they have left.
            OverShare: most places are taken, and they exceed the caller's share of them.
        """
        limits, counted = self._settings(), f"{self.images} images are in flight"
        total = self.images + images
        if total > limits.max_in_flight:
            raise self.refusal(f"{counted}; at most {limits.max_in_flight} are admitted", by)
        self.check_size(size, by)
        if 2 * total > limits.max_in_flight and by.client:
            self._check_share(images, by, limits.max_in_flight)
        # The pixels of one request are admitted alone, however many they are: each image is within its own limit.
        if pixels and self.pixels and self.pixels + pixels > limits.max_in_flight_pixels:
            raise self.refusal(
                f"images of {self.pixels} pixels wait to be decoded; at most {limits.max_in_flight_pixels} are "
                f"admitted, not counting JPEGs of up to {PLAIN_PIXELS}"
            )
        if (pace := self._drain.proven_pace) and self.images / pace > left_s:
            raise self.refusal(f"{counted}, at {pace:.3g} a second; this request has {left_s:.3f} s left")

    def check_size(self, size: int, by: Caller = ANYONE) -> None:
        """Raise Overloaded if these bytes more exceed what is admitted, whatever images they are of."""
        if self.size + size > (most := self._settings().max_in_flight_bytes):
            raise self.refusal(f"{self.size} bytes are in flight; at most {most} are admitted", by)

    def _check_share(self, images: int, by: Caller, places: int) -> None:
        if self._shares.exceeds(by.client, images, places):
            wait_s = self._retry_after_s()
            raise OverShare(
                f"{self.images} images are in flight, and your share of {places} places is taken; "
                f"try again in {math.ceil(wait_s)} s",
                retry_after_s=wait_s,
            )

    def refusal(self, reason: str, by: Caller = ANYONE) -> Overloaded:
        """The error of a request that is not admitted, which says when to try again."""
        self._shares.want(by.client)
        wait_s = self._retry_after_s()
        return Overloaded(f"{reason}; try again in {math.ceil(wait_s)} s", retry_after_s=wait_s)

    def _retry_after_s(self) -> float:
        return self._drain.retry_after_s(self.images, self._settings().retry_after_s)

    @contextmanager
    def held(
        self, images: int, size: int, by: Caller = ANYONE, pixels: int = 0, left_s: float = math.inf
    ) -> Iterator[None]:
        """Admit images, or raise as `check` does, and count them for as long as the block takes."""
        self.check(images, size, by, pixels, left_s)
        self._count(images, size, by, pixels)
        try:
            yield
        finally:
            self._count(-images, -size, by, -pixels)
            limits = self._settings()
            passing = min(limits.max_batch_size * limits.max_concurrent_batches, limits.max_in_flight)
            # Including these, which are answered now: all batches may end at about the same time.
            self._drain.left(images, self.images + images >= max(2, passing // 4))

    def _count(self, images: int, size: int, by: Caller, pixels: int) -> None:
        self._shares.add(by.client, images)
        self.images += images
        self.size += size
        self.pixels += pixels
