"""When the next batch leaves: decided by counts and a clock alone, so that it can be simulated as well as served."""

from __future__ import annotations

from collections.abc import Callable

from deployments.ingress.settings import IngressSettings

# After waits in vain the next ones are left out, twice as many each time, up to so many.
MOST_SKIPPED = 64


class Batching:
    """Decides when a batch leaves: when a concurrency slot is free, at once or after a short wait.

    Clients that have just been answered usually send again at once. If the first image to come left alone, the others
    would wait for its batch. So after a batch of several images the next one waits until as many have come, for no
    longer than a share of the time that the batch took. Where clients do not send again, these waits are left out.

    Beside others in flight a batch leaves once it is as large as these on average, or has waited as long as the last
    batch took. A smaller one would leave fewer images for the next batch, and its clients would go on sending at
    another time than the rest.

    Attributes:
        in_flight: the number of batches that have left and not ended.
        waits: the number of batches that waited for the clients of the batch before.
        waited_s: the time of these waits together, seconds.
    """

    def __init__(self, settings: Callable[[], IngressSettings], clock: Callable[[], float]) -> None:
        """Set where the limits in force are read, and a clock, seconds."""
        self._settings, self._clock = settings, clock
        self.in_flight = self._images = 0
        self.waits, self.waited_s = 0, 0.0
        # When the oldest image that waits arrived, and how long the last batch took.
        self._since = self._took = 0.0
        # Clients that were answered and have not sent again; of how many, since when and until when they are awaited.
        self._missing = self._expected = 0
        self._ended = self._until = 0.0
        self._skip = self._skipped = 0

    def arrived(self, waiting: int) -> None:
        """Note that an image arrived; `waiting` images wait now."""
        now = self._clock()
        if waiting == 1:
            self._since = now
        if self._missing and now < self._until:
            self._missing -= 1

    def leaves_at(self, waiting: int) -> float | None:
        """Return the time at which a batch leaves if nothing else happens, by the clock; None if no batch leaves."""
        if not waiting:
            return None
        settings = self._settings()
        if self.in_flight >= settings.max_concurrent_batches:
            return None
        now = self._clock()
        if waiting >= settings.max_batch_size:
            return now
        due = self._since + settings.batch_wait_ms / 1000
        if waiting * self.in_flight < self._images:
            due = max(due, self._since + self._took)
        return max(now, due, self._until if self._missing else now)

    def left(self, images: int) -> float:
        """Note that a batch leaves, and return the time, by the clock."""
        now = self._clock()
        self.in_flight += 1
        self._images += images
        if self._until > self._ended:
            self._judge(now)
        return now

    def _judge(self, now: float) -> None:
        """Leave out waits if this one was in vain: of the clients that it was for, half have not come."""
        self.waits += 1
        self.waited_s += min(now, self._until) - self._ended
        in_vain = now >= self._until and 2 * self._missing > self._expected
        self._skip = min(MOST_SKIPPED, max(1, 2 * self._skip)) if in_vain else 0
        self._skipped = 0
        self._missing, self._until = 0, self._ended

    def ended(self, images: int, left: float) -> None:
        """Note that a batch ended, and when the batch had left."""
        self.in_flight -= 1
        self._images -= images
        now = self._clock()
        self._took = now - left
        if images == 1:
            return
        if self._skipped < self._skip:
            self._skipped += 1
            return
        self._missing = self._expected = self._missing + images
        self._ended, self._until = now, now + self._took * self._settings().refill_share
