"""Whether images wait so long that a cascade uses lower thresholds, so that answers get cheaper."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from graph.sections import UnderLoadSettings

# `full_share` is taken of at least so many images.
FEWEST = 10


class LoadState:
    """Follows how long images wait in the queue.

    Attributes:
        is_on: whether the lower thresholds are in force.
        exit_at: the lower thresholds.
    """

    def __init__(self, settings: UnderLoadSettings) -> None:
        self.is_on = False
        self.exit_at: Sequence[float] = settings.exit_at
        self._settings = settings
        self._images = self._full = 0

    def see(self, batch: Batch[object]) -> None:
        """Begin or end by how long the batch's first image has waited until a node took it."""
        waits = [item.steps[0].note.start_ns - item.queued_ns for item in batch.items if item.queued_ns and item.steps]
        if not waits:
            return
        waited_ms = max(waits) / 1e6
        if not self.is_on and waited_ms >= self._settings.from_queue_ms:
            self.is_on, self._images, self._full = True, 0, 0
        elif self.is_on and waited_ms <= self._settings.until_queue_ms:
            self.is_on = False
        self._images += len(batch.items)

    def grants(self, item: Item) -> bool:
        """Whether every member is asked about an image, as its caller wants; under load only for a share of them."""
        if item.options.quality != "full":
            return False
        if not self.is_on:
            return True
        if self._full + 1 > self._settings.full_share * max(self._images, FEWEST):
            return False
        self._full += 1
        return True
