"""Labelled images on which ways to prepare a model are tried: few images first, and more while they do not decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from scripts.dataset import decode
from scripts.evaluate.accuracy import Truth, hits
from scripts.interval import Interval

# After so many images some ways may be tried no longer.
STAGES = (50, 150)
# A way is clearly worse if the interval shows so many points less than the best way.
CLEARLY = 5.0


class Trial:
    """Labelled images, each decoded once for all the preprocessings that are tried."""

    def __init__(
        self, names: Sequence[str], encoded: Sequence[bytes], labels: Truth, ways: Sequence[Preprocessing]
    ) -> None:
        """Take images with their names and class indices, int64 [images]."""
        self.labels, self.ways = labels, tuple(ways)
        self._decoded = cache(lambda number: decode(names[number], encoded[number], ways))

    def pixels(self, way: Preprocessing, begin: int, end: int) -> Pixels:
        """Return some images' pixels by one of the ways, uint8 BGR [images,height,width,3]."""
        place = self.ways.index(way)
        return np.stack([self._decoded(number)[place] for number in range(begin, end)])

    def race(
        self, runners: Sequence[Callable[[int, int], Probabilities]], *, first_is_usual: bool = False
    ) -> list[Probabilities]:
        """Run ways on few images, and on the others only those that may be the best.

        Args:
            runners: predict the images from a position to another one, in one way each.
            first_is_usual: whether the first way is taken unless another one is better: one that is not ahead of it
                after the last stage is tried no longer.

        Returns:
            The probabilities of each way, float32 [images,classes], of as many images as it was tried on.
        """
        outputs: list[list[Probabilities]] = [[] for _ in runners]
        running, begin = list(range(len(runners))), 0
        for end in [*(stage for stage in STAGES if stage < len(self.labels)), len(self.labels)]:
            for way in running:
                outputs[way].append(runners[way](begin, end))
            right = {way: hits(np.concatenate(outputs[way]), self.labels[:end]) for way in running}
            best = max(running, key=lambda way: right[way].mean())
            running = [way for way in running if Interval.paired(right[best] - right[way]).low <= CLEARLY]
            if first_is_usual and running[0] == 0 and end >= STAGES[-1]:
                running = [way for way in running if way == 0 or right[way].mean() > right[0].mean()]
            begin = end
        return [np.concatenate(each) for each in outputs]
