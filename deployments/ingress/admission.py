"""Who is let in: images in flight and their bytes are counted, and one more than there is room for is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.contract.errors import Overloaded
from deployments.ingress.drain import Drain
from deployments.ingress.settings import IngressSettings


class Admission:
    """The room for images.

    Attributes:
        images: admitted and not yet answered.
        size: their bytes, and those of bodies that are still arriving.
    """

    def __init__(self, settings: Callable[[], IngressSettings]) -> None:
        """Set where the limits in force are read."""
        self._settings = settings
        self.images = 0
        self.size = 0
        self._drain = Drain()

    def check(self, images: int = 1, size: int = 0) -> None:
        """Raise Overloaded if so many more images, of so many bytes together, exceed what is admitted."""
        settings = self._settings()
        full = self.images + images > settings.max_in_flight
        if full or self.size + size > settings.max_in_flight_bytes:
            raise self.refusal(
                f"{self.images} images of {self.size} bytes are in flight; at most {settings.max_in_flight} of "
                f"{settings.max_in_flight_bytes} bytes are admitted"
            )

    def check_time(self, left_s: float) -> None:
        """Raise Overloaded if what is in flight takes longer than a request has left, seconds."""
        if (pace := self._drain.pace) and self.images / pace > left_s:
            raise self.refusal(
                f"{self.images} images are in flight, at {pace:.0f} a second; this request has {left_s:.3f} s left"
            )

    def refusal(self, reason: str) -> Overloaded:
        """The error of a request that is not admitted, which says when to try again."""
        wait_s = self._drain.retry_after_s(self.images, self._settings().retry_after_s)
        return Overloaded(f"{reason}; try again in {math.ceil(wait_s)} s", retry_after_s=wait_s)

    @contextmanager
    def room(self, images: int, size: int, left_s: float) -> Iterator[None]:
        """Room for so many images of so many bytes together, for as long as the block takes.

        Raises:
            Overloaded: there is no room for them, or what is in flight takes longer than they have left.
        """
        self.check(images, size)
        self.check_time(left_s)
        self.images += images
        self.size += size
        try:
            yield
        finally:
            self.images -= images
            self.size -= size
            settings = self._settings()
            enough = min(settings.max_batch_size * settings.max_concurrent_batches, settings.max_in_flight // 2)
            self._drain.left(images, self.images >= enough)
