"""A canary's trial: which images it answers, how it compares with the other version, and when it is rolled back."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

from deployments.contract.caller import Caller
from deployments.contract.item import Version
from deployments.contract.rollout import CanaryConfig, CanarySettings

if TYPE_CHECKING:
    from graph.capabilities.canary.metrics import CanaryMetrics, CanaryStats

logger = logging.getLogger("ray.serve")

Role = Literal["canary", "stable"]
ALL = 2**64
# A call that takes so many times the usual time, and at least so many seconds, has failed.
TAIL, LEAST_PATIENCE_S = 10, 0.25


class Trial:
    """Draws the images of a canary, and rolls it back when its failures or its latency pass their bounds.

    Attributes:
        name: the member's.
        header: the request's header that decides, in small letters; None for the image itself.
        rolled_back: why it was rolled back; empty if it was not. New settings start it again.
        seconds: how long each version took for its last images.
    """

    def __init__(self, name: str, config: CanaryConfig, metrics: CanaryMetrics) -> None:
        self.name, self.rolled_back = name, ""
        self.header = config.header
        self._metrics = metrics
        self._salt = f"{name} {config.version} ".encode()
        self.settings = CanarySettings.part_of(config)

    @property
    def settings(self) -> CanarySettings:
        """The configured share and bounds."""
        return self._settings

    @settings.setter
    def settings(self, settings: CanarySettings) -> None:
        self._settings, self.rolled_back = settings, ""
        # Whether the canary failed on its last images.
        self._failed: deque[bool] = deque(maxlen=settings.window)
        self.seconds: dict[Role, deque[float]] = {
            "canary": deque(maxlen=settings.window),
            "stable": deque(maxlen=settings.window),
        }

    @property
    def share(self) -> float:
        """The share in force: 0 once it was rolled back."""
        return 0.0 if self.rolled_back else self._settings.share

    def takes(self, image: bytes, by: Caller) -> bool:
        """Whether it answers an image: the same for images alike in the key, and still so when the share grows."""
        share = self.share
        if not 0 < share < 1:
            return share == 1
        key = None if self.header is None else by.headers.get(self.header)
        value = b"image" + image if key is None else b"key" + key.encode("utf-8", "surrogatepass")
        drawn = hashlib.blake2b(self._salt + value, digest_size=8).digest()
        return int.from_bytes(drawn) < share * ALL

    def note(self, role: Role, failed: Sequence[bool], seconds: float) -> None:
        """Note a call of a version: whether that version alone failed on each image, and how long the call took."""
        for outcome in (False, True):
            self._metrics.images.add(self.name, role, outcome, count=failed.count(outcome))
        self._metrics.took(self.name, role, seconds)
        if self.rolled_back:
            return
        self.seconds[role].extend([seconds] * len(failed))
        if role == "canary":
            self._failed.extend(failed)
            self._judge()

    @property
    def patience_s(self) -> float | None:
        """How long an answer of the canary is waited for, seconds; None as long as the other version's time is unknown.

        The other images of the batch wait with it, so this is much less than the member's patience.
        """
        usual = self.seconds["stable"]
        if len(usual) < self._settings.least:
            return None
        return max(LEAST_PATIENCE_S, TAIL * self._settings.max_slowdown * median(usual))

    def predicted(self, by_canary: bool, version: Version | None, agrees: bool) -> None:
        """Count an image by the version that answered it, and whether that agreed with the ensemble."""
        self._metrics.predictions.add(self.name, "canary" if by_canary else "stable", str(version), agrees)

    def figures(self) -> CanaryStats:
        """What `/stats` reports about it."""
        return self._metrics.figures(self)

    def _judge(self) -> None:
        least, count = self._settings.least, len(self._failed)
        if count < least:
            return
        share = sum(self._failed) / count
        if share > self._settings.max_failures:
            self._roll_back("failures", f"it failed on {share:.1%} of {count} images, more than", "max_failures")
        elif len(self.seconds["stable"]) >= least:
            own, usual = median(self.seconds["canary"]), median(self.seconds["stable"])
            if own > self._settings.max_slowdown * usual:
                compared = f"it takes {own * 1000:.1f} ms and the other version {usual * 1000:.1f} ms, more than"
                self._roll_back("latency", compared, "max_slowdown")

    def _roll_back(self, reason: str, found: str, bound: str) -> None:
        logger.error(
            "canary of member %r is rolled back, its share is 0 until its settings change: %s %s = %s",
            *(self.name, found, bound, getattr(self._settings, bound)),
        )
        self.rolled_back = reason
        self._metrics.rollbacks.add(self.name, reason)
