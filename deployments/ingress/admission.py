"""Who is let in: images in flight and their bytes are counted, and one more than there is room for is refused."""

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


class Admission:
    """The room for images.

    Attributes:
        images: admitted and not yet answered.
        size: their bytes, and those of bodies that are still arriving.
        pixels: what those among them that are isolated declare.
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
        """Images that leave in a second; 0 if it is not known."""
        return self._drain.pace

    def check(self, images: int = 1, size: int = 0, by: Caller = ANYONE) -> None:
        """Let so many more images in, of so many bytes together; nothing is counted yet.

        Raises:
            Overloaded: they exceed what is admitted.
            OverShare: most of the room is taken, and they exceed the caller's share of it.
        """
        settings = self._settings()
        if self.images + images > settings.max_in_flight:
            raise self.refusal(f"{self.images} images are in flight; at most {settings.max_in_flight} are admitted", by)
        self.check_size(size, by)
        if by.client and 2 * (self.images + images) > settings.max_in_flight:
            self._check_share(images, by, settings.max_in_flight)

    def check_size(self, size: int, by: Caller = ANYONE) -> None:
        """Raise Overloaded if so many more bytes exceed what is admitted, whatever images they are of."""
        if self.size + size > (most := self._settings().max_in_flight_bytes):
            raise self.refusal(f"{self.size} bytes are in flight; at most {most} are admitted", by)

    def _check_share(self, images: int, by: Caller, places: int) -> None:
        if self._shares.exceeds(by.client, images, places):
            wait_s = self._drain.retry_after_s(self.images, self._settings().retry_after_s)
            raise OverShare(
                f"{self.images} images are in flight, and your share of {places} places is taken; "
                f"try again in {math.ceil(wait_s)} s",
                retry_after_s=wait_s,
            )

    def check_pixels(self, pixels: int) -> None:
        """Raise Overloaded if so many more pixels exceed what is admitted of images that are decoded apart."""
        # Those of one request are let in alone, however many they are: each is within the limit of an image.
        if pixels and self.pixels and self.pixels + pixels > (most := self._settings().max_in_flight_pixels):
            raise self.refusal(
                f"images of {self.pixels} pixels wait to be decoded; at most {most} are admitted, JPEGs of up to "
                f"{PLAIN_PIXELS} not counted"
            )

    def check_time(self, left_s: float) -> None:
        """Raise Overloaded if what is in flight takes longer than a request has left, seconds."""
        if (pace := self._drain.proven_pace) and self.images / pace > left_s:
            raise self.refusal(
                f"{self.images} images are in flight, at {pace:.3g} a second; this request has {left_s:.3f} s left"
            )

    def refusal(self, reason: str, by: Caller = ANYONE) -> Overloaded:
        """The error of a request that is not admitted, which says when to try again."""
        self._shares.want(by.client)
        wait_s = self._drain.retry_after_s(self.images, self._settings().retry_after_s)
        return Overloaded(f"{reason}; try again in {math.ceil(wait_s)} s", retry_after_s=wait_s)

    @contextmanager
    def room(self, images: int, size: int, left_s: float, by: Caller, pixels: int = 0) -> Iterator[None]:
        """Room for so many images of so many bytes together, for as long as the block takes.

        `pixels` are those of images that are decoded apart.

        Raises:
            Overloaded: there is no room for them, or what is in flight takes longer than they have left.
            OverShare: as of `check`.
        """
        self.check(images, size, by)
        self.check_pixels(pixels)
        self.check_time(left_s)
        self._shares.add(by.client, images)
        self.images += images
        self.size += size
        self.pixels += pixels
        try:
            yield
        finally:
            self._shares.add(by.client, -images)
            self.images -= images
            self.size -= size
            self.pixels -= pixels
            settings = self._settings()
            passing = min(settings.max_batch_size * settings.max_concurrent_batches, settings.max_in_flight)
            # With those that leave now: all passes may end at about the same time.
            self._drain.left(images, self.images + images >= max(2, passing // 4))
