"""A canary as it is judged: which images it answers, how it fares beside the other version, and when it ends."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

from deployments.contract.caller import Caller
from deployments.contract.item import Version
from deployments.contract.rollout import CanaryConfig, CanarySettings
from graph.capabilities.canary.figures import CanaryStats, VersionStats
from graph.capabilities.proportion import proportion

if TYPE_CHECKING:
    from graph.capabilities.canary.metrics import CanaryMetrics

logger = logging.getLogger("ray.serve")

Role = Literal["canary", "stable"]
ALL = 2**64
# A call that takes so many times the usual time, or at least this, has failed.
TAIL, LEAST_PATIENCE_S = 10, 0.25


class Trial:
    """Draws the images of a canary, and ends it when its failures or its latency pass their bounds.

    Attributes:
        name: the member's.
        header: the request's header that decides; None for the image itself.
        rolled_back: why it has ended by itself; empty if it has not. New settings begin anew.
    """

    def __init__(self, name: str, config: CanaryConfig, counts: CanaryMetrics) -> None:
        """Set the member's name, what is tried, and who counts."""
        self.name, self.counts, self.rolled_back = name, counts, ""
        self.header = config.header
        self._salt = f"{name} {config.version} ".encode()
        self._settings = CanarySettings.part_of(config)
        self._calls: Counter[tuple[Role, bool]] = Counter()
        self._votes: Counter[tuple[Role, bool]] = Counter()
        self._clear()

    def _clear(self) -> None:
        window = self._settings.window
        self._failed: deque[bool] = deque(maxlen=window)
        self._seconds: dict[Role, deque[float]] = {"canary": deque(maxlen=window), "stable": deque(maxlen=window)}

    @property
    def settings(self) -> CanarySettings:
        """The share and the bounds that are configured."""
        return self._settings

    @settings.setter
    def settings(self, settings: CanarySettings) -> None:
        self._settings, self.rolled_back = settings, ""
        self._clear()

    def check(self, settings: CanarySettings) -> None:
        """Any settings will do whose fields are in their bounds."""

    @property
    def share(self) -> float:
        """The share in force: 0 once it was rolled back."""
        return 0.0 if self.rolled_back else self._settings.share

    def takes(self, image: bytes, by: Caller) -> bool:
        """Whether it answers an image; alike for what is alike in the key, and for ever more if the share grows."""
        share = self.share
        if not 0 < share < 1:
            return share == 1
        told = None if self.header is None else by.headers.get(self.header)
        value = b"image" + image if told is None else b"key" + told.encode("utf-8", "surrogateescape")
        drawn = hashlib.blake2b(self._salt + value, digest_size=8).digest()
        return int.from_bytes(drawn) < share * ALL

    def note(self, role: Role, failed: Sequence[bool], seconds: float) -> None:
        """Note a call of a version: of each image whether that version alone failed on it, and what the call took."""
        self.counts.asked(self.name, role, len(failed), sum(failed), seconds)
        self._calls.update((role, each) for each in failed)
        if self.rolled_back:
            return
        self._seconds[role].extend([seconds] * len(failed))
        if role == "canary":
            self._failed.extend(failed)
            self._judge()

    @property
    def patience_s(self) -> float | None:
        """How long an answer of the canary is worth waiting for, seconds; None while that is not known.

        The other images of the batch wait with it, so it is much less than a member may take.
        """
        usual = self._seconds["stable"]
        if len(usual) < self._settings.least:
            return None
        return max(LEAST_PATIENCE_S, TAIL * self._settings.max_slowdown * median(usual))

    def voted(self, tried: bool, version: Version | None, agrees: bool) -> None:
        """Count an image by the version that answered it, and whether that agreed with the ensemble."""
        role: Role = "canary" if tried else "stable"
        self._votes[role, agrees] += 1
        self.counts.voted(self.name, role, str(version), agrees)

    def figures(self) -> CanaryStats:
        """What was counted."""
        return CanaryStats(self.share, self.rolled_back, self._version("canary"), self._version("stable"))

    def _version(self, role: Role) -> VersionStats:
        well, failed = self._calls[role, False], self._calls[role, True]
        agreed = proportion(self._votes[role, True], self._votes[role, True] + self._votes[role, False])
        seconds = self._seconds[role]
        return VersionStats(well + failed, failed, agreed, round(median(seconds) * 1000, 3) if seconds else None)

    def _judge(self) -> None:
        least, count = self._settings.least, len(self._failed)
        if count < least:
            return
        share = sum(self._failed) / count
        if share > self._settings.max_failures:
            self._end("failures", f"it failed on {share:.1%} of {count} images, more than", "max_failures")
        elif len(self._seconds["stable"]) >= least:
            own, usual = median(self._seconds["canary"]), median(self._seconds["stable"])
            if own > self._settings.max_slowdown * usual:
                told = f"it takes {own * 1000:.1f} ms and the other version {usual * 1000:.1f}, more than"
                self._end("latency", told, "max_slowdown")

    def _end(self, reason: str, told: str, bound: str) -> None:
        logger.error(
            "canary of member %r is rolled back, its share is 0 until its settings change: %s %s = %s",
            *(self.name, told, bound, getattr(self._settings, bound)),
        )
        self.rolled_back = reason
        self.counts.rolled_back(self.name, reason)
