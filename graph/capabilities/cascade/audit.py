"""The audit of a cascade: what all members together would have answered where it stopped early."""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graph.flows.interval import Interval, wilson

if TYPE_CHECKING:
    from graph.capabilities.cascade.metrics import AuditMetrics

logger = logging.getLogger("ray.serve")

# Exits of a stage that its share is taken of: the last ones.
WINDOW = 1000
# Fewer exits say nothing.
FEWEST = 20


class Audit:
    """Draws exits to look at again, keeps what came of them, and may raise thresholds.

    Attributes:
        exit_at: each stage's threshold in force.
    """

    def __init__(
        self,
        members: Sequence[str],
        exit_at: Sequence[float],
        share: float,
        at_most: float | None,
        tighten: bool,
        counts: AuditMetrics,
        seed: int | None = None,
    ) -> None:
        """Set what is audited.

        Args:
            members: those that an image may be answered by the last of, in order.
            exit_at: their thresholds.
            share: of the exits that are drawn.
            at_most: the share of the exits that may be answered otherwise; None for no bound.
            tighten: whether thresholds rise while the bound is broken.
            counts: counts what is found.
            seed: of the draw.
        """
        self.exit_at = list(exit_at)
        self._members = members
        self._share, self._at_most, self._tighten = share, at_most, tighten
        self._counts = counts
        self._random = random.Random(seed)
        self._seen: list[deque[tuple[float, bool]]] = [deque(maxlen=WINDOW) for _ in members]

    def draw(self, exits: Sequence[int]) -> list[int]:
        """Some of the exits."""
        return [image for image in exits if self._random.random() < self._share]

    def drop(self, stage: int, count: int) -> None:
        """Count exits that were drawn and not looked at."""
        for _ in range(count):
            self._counts.audit(self._members[stage], "dropped")

    def note(self, stage: int, sure: float, differs: bool) -> None:
        """Note what came of an exit, and how sure the stage had been."""
        self._counts.audit(self._members[stage], "differs" if differs else "agrees")
        # One that would not exit any more tells nothing about those that do.
        if sure < self.exit_at[stage]:
            return
        seen = self._seen[stage]
        seen.append((sure, differs))
        found = interval([each for _, each in seen])
        if self._tighten and self._at_most is not None and found is not None and found[0] > self._at_most:
            self._raise(stage, found)

    def _raise(self, stage: int, found: Interval) -> None:
        """To where the share of what still exits is within the bound, as far as is known."""
        assert self._at_most is not None
        surest = sorted(self._seen[stage], reverse=True)
        wrong, kept = 0, 0
        for count, (_, differs) in enumerate(surest, 1):
            wrong += differs
            if wrong <= self._at_most * count:
                kept = count
        # Above the surest that does not belong to them.
        below = surest[kept][0] if kept < len(surest) else 0.0
        threshold = min(1.0, math.nextafter(below, 2.0))
        logger.warning(
            "cascade: %.2f %% (%.2f to %.2f) of the exits at %r differ from what all members say, more than %.2f %%; "
            "its threshold rises from %.4f to %.4f",
            *(100 * found[1], 100 * found[0], 100 * found[2]),
            *(self._members[stage], 100 * self._at_most, self.exit_at[stage], threshold),
        )
        self.exit_at[stage] = threshold
        self._seen[stage] = deque(surest[:kept], maxlen=WINDOW)
        self._counts.tightened(self._members[stage])

    def report(self) -> list[tuple[str, float, Interval | None]]:
        """Of each stage its member, its threshold, and the share of its last exits that differ: low, mean, high."""
        found = [interval([differs for _, differs in list(seen)]) for seen in self._seen]
        return list(zip(self._members, self.exit_at, found, strict=True))


def interval(differs: Sequence[bool]) -> Interval | None:
    """The share that differs with its 95 % interval (Wilson's): low, mean, high; None of too few."""
    count = len(differs)
    if count < FEWEST:
        return None
    return wilson(sum(differs), count)
