"""A ladder: thresholds from the safest to the cheapest, of which a request's tolerance chooses.

A rung's loss is bounded by labelled images. Its audit needs no labels: where more images than on those are answered
otherwise than by all members, the bound may not hold, and the rung is withdrawn.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from deployments.contract.errors import InvalidParameter
from deployments.contract.item import ItemNote
from deployments.contract.options import AddedOptions, Options
from deployments.contract.proportion import Interval, wilson
from ensemble_features.cascade.audit import WINDOW
from ensemble_features.cascade.settings import RungSettings
from ensemble_serving import answer

logger = logging.getLogger("ray.serve")

# No probability reaches it.
NEVER = 2.0
# A rung is judged by so many audited exits: of 20, two that differ by chance would withdraw it.
FEWEST = 100
# After so many images of a rung, earlier ones count half in the share that exits.
RECENT = 100_000
UNBOUNDED = RungSettings(exit_at=(), loss=0, differs=1, cost=1)
POINTS = Meta(ge=0, le=100, description="largest loss of top-1 against all members, points; picks the cheapest rung")
UNDER_LOAD = Meta(ge=0, le=100, description="the same while images wait long; default: `tolerance`")


class Tolerance(AddedOptions, frozen=True):
    """The options of a request to a cascade."""

    remedy: ClassVar[str] = "it needs `ensemble.cascade.ladder`, which `ensemble tune-cascade` writes"

    tolerance: Annotated[float, POINTS] | None = None
    tolerance_under_load: Annotated[float, UNDER_LOAD] | None = None


class Accepted(ItemNote, frozen=True):
    """The numbers of the rungs that an image's caller accepts, usually and under load."""

    decides = True

    rung: int
    under_load: int


class Rung:
    """Thresholds, and what the audit knows of them.

    Attributes:
        exit_at: the threshold of each member but the last.
        number: its place in the ladder, 0 for all members; None outside of the ladder.
        bounds: its settings, for its bounds; outside of the ladder a rung is not bounded.
        is_held: whether the audit holds its bounds, and else it is withdrawn; None before enough audits.
    """

    def __init__(self, exit_at: Sequence[float], number: int | None = None, bounds: RungSettings = UNBOUNDED) -> None:
        self.exit_at, self.number, self.bounds = exit_at, number, bounds
        self.is_held = True if number == 0 else None
        self._images = self._exits = 0.0
        # Of the last audited exits, whether all members answer otherwise.
        self._seen: deque[bool] = deque(maxlen=WINDOW)

    def count(self, is_exit: bool) -> None:
        """Count an answered image, and whether it left before the last member."""
        self._images, self._exits = self._images + 1, self._exits + is_exit
        if self._images > RECENT:
            self._images, self._exits = self._images / 2, self._exits / 2

    def note(self, differs: bool) -> None:
        """Note an audited exit; withdraw the rung if surely more images differ than its bound allows."""
        self._seen.append(differs)
        found = self.differing()
        if found is None or self.is_held is False:
            return
        self.is_held = found[0] <= self.bounds.differs
        if not self.is_held:
            logger.warning(
                "cascade: rung %d is withdrawn: all members answer %.2f %% (%.2f to %.2f) of its images differently, "
                "more than %.2f %%; choose a new ladder by `ensemble tune-cascade`",
                *(self.number, 100 * found[1], 100 * found[0], 100 * found[2], 100 * self.bounds.differs),
            )

    def differing(self) -> Interval | None:
        """Estimate the share of images that all members answer otherwise, with its interval; None of few audits."""
        if len(self._seen) < FEWEST or not self._images:
            return None
        exits = self._exits / self._images
        low, mean, high = (exits * each for each in wilson(sum(self._seen), len(self._seen)))
        return low, mean, high

    def status(self, is_whole: bool = True) -> answer.Rung | None:
        """Return what an answer says of it, to which every called member contributes, or else no bound is held."""
        if self.number is None:
            return None
        return answer.Rung(self.number, self.bounds.loss, self.bounds.cost, self.is_held if is_whole else False)


class Ladder:
    """The rungs of a cascade.

    Attributes:
        rungs: from all members, which lose nothing, to the cheapest.
    """

    def __init__(self, settings: Sequence[RungSettings], stages: int) -> None:
        """Set the configured rungs, and the number of members after which an image may leave."""
        self.rungs = [Rung((NEVER,) * stages, 0 if settings else None)]
        self.rungs += [Rung(each.exit_at, number, each) for number, each in enumerate(settings, 1)]

    def accept(self, asked: Tolerance, options: Options) -> Accepted:
        """Choose the rungs of a request; raise InvalidParameter for a tolerance that can't be meant."""
        if asked.tolerance is None or options.quality is not None:
            raise InvalidParameter("tolerance_under_load needs tolerance, and quality takes none; send tolerance alone")
        most = asked.tolerance if asked.tolerance_under_load is None else asked.tolerance_under_load
        if not asked.tolerance <= most:
            raise InvalidParameter(f"tolerance_under_load: {most:g}; send at least the tolerance, {asked.tolerance:g}")
        return Accepted(self._within(asked.tolerance), self._within(most))

    def _within(self, tolerance: float) -> int:
        """Return the number of the cheapest rung whose bound holds and is within a tolerance."""
        fits = (rung for rung in self.rungs if rung.bounds.loss <= tolerance and rung.is_held is not False)
        return self.rungs.index(list(fits)[-1])
