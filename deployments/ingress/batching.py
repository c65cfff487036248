"""When batches leave: policies that decide by counts and a clock alone, so that they are simulated as well as served.

Serve's own `@serve.batch` cuts a batch when its wait is over, even while every concurrency slot is taken, so
under load it queues many small batches, and an idle server makes a single request wait. Here a batch is cut when a slot
is free: a single request leaves at once, and images that arrive while the graph is busy leave together.
"""

from collections.abc import Callable, Sequence

from deployments.ingress.settings import IngressSettings

# After waits in vain the next ones are left out, twice as many each time, up to so many.
MOST_SKIPPED = 64
# A client that has sent is expected to send again for this time.
SENDS_S = 1.0
# One image of low priority leaves for so many others. One for every 16 raised the p99 of normal priority by half near
# the capacity. An image that runs is not interrupted: after `InferRequest.cancel` OpenVINO 2026.4 gives wrong scores to
# other batches.
NORMAL_PER_LOW = 64


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
        arrivals: the number of images that have arrived.
        arrived_s: when the last of them arrived, by the clock.
        leaves_alone: whether the image that may leave now leaves without the others.
    """

    leaves_alone = False

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
        self.arrivals, self.arrived_s = 0, float("-inf")

    def arrived(self, waiting: int) -> None:
        """Note that an image arrived; `waiting` images wait now."""
        now = self.arrived_s = self._clock()
        self.arrivals += 1
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


class LowPriorityBatching(Batching):
    """Decides when images of low priority leave, which take what normal priority leaves, and a small share at least.

    While clients of normal priority send, an image of low priority leaves by itself: when nothing of normal priority is
    there, or when `NORMAL_PER_LOW` images have come since the last one left.
    """

    def __init__(
        self,
        settings: Callable[[], IngressSettings],
        clock: Callable[[], float],
        normal: Sequence[Batching],
        is_idle: Callable[[], bool],
    ) -> None:
        """Set what decides for normal priority, and what tells whether none of its images waits or is in flight."""
        super().__init__(settings, clock)
        self._normal, self._is_idle = normal, is_idle
        self._arrived_before = 0

    def _arrived(self) -> int:
        return sum(each.arrivals for each in self._normal)

    def leaves_at(self, waiting: int) -> float | None:
        """Return the time at which a batch leaves if nothing else happens, by the clock; None if no batch leaves."""
        self.leaves_alone = self._clock() < max(each.arrived_s for each in self._normal) + SENDS_S
        if not self.leaves_alone:
            return super().leaves_at(waiting)
        has_share = self._arrived() - self._arrived_before >= NORMAL_PER_LOW
        may_leave = waiting and not self.in_flight and (has_share or self._is_idle())
        return self._clock() if may_leave else None

    def left(self, images: int) -> float:
        """Note that a batch leaves, and return the time, by the clock."""
        self._arrived_before = self._arrived()
        return super().left(images)
