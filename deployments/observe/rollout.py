"""Metrics of what is tried on what comes in. See `metrics` for how they are exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ray.serve.metrics import Counter, Gauge, Histogram

from deployments.observe.flows import again_and_again
from deployments.observe.metrics import SECONDS, tag_keys


class Tried(Protocol):
    """A canary."""

    name: str

    @property
    def share(self) -> float:
        """The share in force."""
        ...


class CanaryMetrics:
    """What the door counts of members with a canary, by the version: the `canary` and the `stable` one."""

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

    def follow(self, tried: Sequence[Tried]) -> None:
        """Report the shares in force."""

        def report() -> None:
            for each in tried:
                self._share.set(each.share, tags={"member": each.name})

        again_and_again(report, "canary metrics")


class ShadowMetrics:
    """What the door counts of shadows."""

    def __init__(self) -> None:
        """Register every metric."""
        self._images = Counter(
            "ensemble_shadow_images",
            description="Images drawn for a shadow: compared, failed, or dropped.",
            tag_keys=tag_keys("member", "result"),
        )
        self._agreement = Counter(
            "ensemble_shadow_predictions",
            description="Images by whether a shadow agreed with the ensemble, or the member that it would replace.",
            tag_keys=tag_keys("member", "other", "agrees"),
        )

    def shadowed(self, shadow: str, result: str, images: int) -> None:
        """Count images that were drawn for it."""
        self._images.inc(images, tags={"member": shadow, "result": result})

    def compared(self, shadow: str, other: str, agrees: bool) -> None:
        """Count an image by whether it agrees with the ensemble, or with the member that it would replace."""
        self._agreement.inc(tags={"member": shadow, "other": other, "agrees": str(agrees).lower()})


class FeedbackMetrics:
    """What the door counts of true labels."""

    def __init__(self) -> None:
        """Register every metric."""
        self._labels = Counter(
            "ensemble_feedback_labels",
            description="True labels that were told: accepted, or by the code of the error.",
            tag_keys=tag_keys("result"),
        )
        self._answers = Counter(
            "ensemble_feedback_answers",
            description="Labelled images by whether the ensemble, a member, a version, an exit or a shadow was right.",
            tag_keys=tag_keys("kind", "name", "version", "right"),
        )

    def labelled(self, result: str) -> None:
        """Count a label: `accepted`, or the code of its error."""
        self._labels.inc(tags={"result": result})

    def judged(self, kind: str, name: str, version: str, right: bool) -> None:
        """Count an answer by whether it was right."""
        self._answers.inc(tags={"kind": kind, "name": name, "version": version, "right": str(right).lower()})
