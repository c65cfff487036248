"""Who is let in: images in flight and their bytes are counted, and one more than there is room for is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.contract.errors import Overloaded
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

    def check(self, images: int = 1, size: int = 0) -> None:
        """Raise Overloaded if so many more images, of so many bytes together, exceed what is admitted."""
        settings = self._settings()
        full = self.images + images > settings.max_in_flight
        if full or self.size + size > settings.max_in_flight_bytes:
            raise Overloaded(
                f"{self.images} images of {self.size} bytes are in flight; at most {settings.max_in_flight} of "
                f"{settings.max_in_flight_bytes} bytes are admitted; try again in {settings.retry_after_s} s"
            )

    @contextmanager
    def room(self, images: int, size: int) -> Iterator[None]:
        """Room for so many images of so many bytes together, for as long as the block takes; raises as `check` does."""
        self.check(images, size)
        self.images += images
        self.size += size
        try:
            yield
        finally:
            self.images -= images
            self.size -= size
