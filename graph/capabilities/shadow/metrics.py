"""Metrics of shadows."""

from __future__ import annotations

from ray.serve.metrics import Counter

from deployments.observe.metrics import tag_keys


class ShadowMetrics:
    """What the ingress counts of shadows."""

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
