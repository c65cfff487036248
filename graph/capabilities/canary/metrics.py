"""Metrics of a canary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray.serve.metrics import Counter, Gauge, Histogram

from deployments.observe.metrics import SECONDS, again_and_again, tag_keys

if TYPE_CHECKING:
    from graph.capabilities.canary.trial import Trial


class CanaryMetrics:
    """What the ingress counts of members with a canary, by the version: the `canary` and the `stable` one."""

    def __init__(self) -> None:
        """Register every metric."""
        self._images = Counter(
            "ensemble_canary_images",
            description="Images given to a version of a member, by whether it alone failed on them.",
            tag_keys=tag_keys("member", "role", "failed"),
        )
        self._duration = Histogram(
            "ensemble_canary_duration_seconds",
            description="Time that a version of a member took for its images of a batch.",
            boundaries=SECONDS,
            tag_keys=tag_keys("member", "role"),
        )
        self._votes = Counter(
            "ensemble_canary_predictions",
            description="Images by the version that a member answered with, and whether that agreed with the ensemble.",
            tag_keys=tag_keys("member", "role", "version", "agrees"),
        )
        self._rollbacks = Counter(
            "ensemble_canary_rollbacks",
            description="Canaries that have ended by themselves: for their failures or their latency.",
            tag_keys=tag_keys("member", "reason"),
        )
        self._share = Gauge(
            "ensemble_canary_share", description="Share of the images in force.", tag_keys=tag_keys("member")
        )

    def asked(self, member: str, role: str, images: int, failed: int, seconds: float) -> None:
        """Count a call of a version, which took so long, and the images that it failed on."""
        tags = {"member": member, "role": role}
        for count, told in ((images - failed, "false"), (failed, "true")):
            if count:
                self._images.inc(count, tags={**tags, "failed": told})
        # Ray counts nothing that is not above zero.
        self._duration.observe(max(seconds, 1e-9), tags=tags)

    def voted(self, member: str, role: str, version: str, agrees: bool) -> None:
        """Count an image by whether the version that answered it agreed with the ensemble."""
        tags = {"member": member, "role": role, "version": version, "agrees": str(agrees).lower()}
        self._votes.inc(tags=tags)

    def rolled_back(self, member: str, reason: str) -> None:
        """Count a canary that has ended by itself."""
        self._rollbacks.inc(tags={"member": member, "reason": reason})

    def follow(self, tried: Sequence[Trial]) -> None:
        """Report the shares in force."""

        def report() -> None:
            for each in tried:
                self._share.set(each.share, tags={"member": each.name})

        again_and_again(report, "canary metrics")
