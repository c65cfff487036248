"""The audit of a cascade: the answers that all members together would have given where it stopped early."""

import logging
import random
from collections import deque
from collections.abc import Sequence

import numpy as np

from deployments.contract.counting import TaggedCounter
from deployments.contract.proportion import Interval, wilson

logger = logging.getLogger("ray.serve")

# The share of a stage is taken of its last exits, at most and at least so many.
WINDOW, FEWEST = 1000, 20


class Audit:
    """Draws early exits to look at again, keeps the results, and may raise thresholds.

    Attributes:
        exit_at: each stage's threshold in force.
        at_most: the share of the exits that may be answered otherwise; None for no bound.
    """

    def __init__(
        self,
        members: Sequence[str],
        exit_at: Sequence[float],
        share: float,
        at_most: float | None,
        tighten: bool,
        seed: int | None = None,
    ) -> None:
        """Set the members after which an image may leave early, in order, and the share of the exits that is drawn."""
        self.exit_at = list(exit_at)
        self._members = members
        self._share, self.at_most, self._tighten = share, at_most, tighten
        self._audited = TaggedCounter(
            "ensemble_cascade_audits",
            "Audited early exits, by whether all members agree: agrees, differs, or dropped.",
            *("member", "result"),
        )
        self._tightened = TaggedCounter("ensemble_cascade_tightened", "Rises of a threshold by the audit.", "member")
        self._random = random.Random(seed)
        # Of each stage's last exits: how sure the members were, and whether all members answer differently.
        self._seen: list[deque[tuple[float, bool]]] = [deque(maxlen=WINDOW) for _ in members]

    def draw(self, exits: Sequence[int]) -> list[int]:
        """Draw some of the exits."""
        return [image for image in exits if self._random.random() < self._share]

    def drop(self, stage: int, count: int) -> None:
        """Count exits that were drawn but not looked at."""
        self._audited.add(self._members[stage], "dropped", count=count)

    def note(self, stage: int, sure: float, differs: bool, of_usual: bool = True) -> None:
        """Note the result of an exit, how sure the members had been, and whether it was by these thresholds."""
        self._audited.add(self._members[stage], "differs" if differs else "agrees")
        if not of_usual:
            return
        # An image that would not leave any more says nothing about those that do.
        if sure < np.float32(self.exit_at[stage]):
            return
        seen = self._seen[stage]
        seen.append((sure, differs))
        found = interval(sum(each for _, each in seen), len(seen))
        if self._tighten and self.at_most is not None and found is not None and found[0] > self.at_most:
            self._raise(stage, self.at_most, found)

    def _raise(self, stage: int, at_most: float, found: Interval) -> None:
        """Raise a threshold until the share of the exits that are left is within the bound, by the exits seen."""
        surest = sorted(self._seen[stage], reverse=True)
        wrong, kept = 0, 0
        for count, (_, differs) in enumerate(surest, 1):
            wrong += differs
            if wrong <= at_most * count:
                kept = count
        # Just above the surest exit that is not kept, in the precision of the scores.
        below = surest[kept][0] if kept < len(surest) else 0.0
        threshold = float(np.nextafter(np.float32(below), np.float32(2)))
        logger.warning(
            "cascade: %.2f %% (%.2f to %.2f) of the exits at %r differ from the answers of all members, more than "
            "%.2f %%; its threshold rises from %.4f to %.4f",
            *(100 * found[1], 100 * found[0], 100 * found[2]),
            *(self._members[stage], 100 * at_most, self.exit_at[stage], threshold),
        )
        self.exit_at[stage] = threshold
        self._seen[stage] = deque(surest[:kept], maxlen=WINDOW)
        self._tightened.add(self._members[stage])

    def report(self) -> list[tuple[str, float, int, int]]:
        """Report each stage's member, its threshold, how many of its last audited exits differ, and how many it had."""
        differ = [[differs for _, differs in list(seen)] for seen in self._seen]
        return [
            (member, threshold, sum(each), len(each))
            for member, threshold, each in zip(self._members, self.exit_at, differ, strict=True)
        ]


def interval(differing: int, total: int) -> Interval | None:
    """Return the share that differs with its 95 % interval: low, mean, high; None of fewer than `FEWEST`."""
    return None if total < FEWEST else wilson(differing, total)
