"""What is counted of shadows, for Prometheus and for `/stats`."""

from __future__ import annotations

from collections import Counter

from deployments.observe.metrics import TaggedCounter
from graph.features.proportion import proportion
from graph.features.shadow.flow import Pairs, ShadowStats


class ShadowMetrics:
    """What the ingress counts of shadows.

    Attributes:
        labelled: images with a true label, by shadow, by what it is compared with, and by whether each was right.
    """

    def __init__(self) -> None:
        self.images = TaggedCounter(
            "ensemble_shadow_images",
            "Images drawn for a shadow, by what came of them: compared, failed or dropped.",
            *("member", "result"),
        )
        self.predictions = TaggedCounter(
            "ensemble_shadow_predictions",
            "Images by whether a shadow agreed with the ensemble, or with the member that it would replace.",
            *("member", "other", "agrees"),
        )
        self.labelled: Counter[tuple[str, str, bool, bool]] = Counter()

    def figures(self, name: str, replaces: str) -> ShadowStats:
        """Return the figures of a shadow for `/stats`, and the member that it replaces."""
        agreed = self.predictions.counts
        others = dict.fromkeys(str(other) for shadow, other, _ in agreed if shadow == name)
        agrees = {other: (agreed[name, other, True], agreed[name, other, False]) for other in others}
        pairs = dict.fromkeys(other for shadow, other, _, _ in self.labelled if shadow == name)
        outcomes = (True, True), (True, False), (False, True), (False, False)
        return ShadowStats(
            replaces,
            self.images.counts[name, "failed"],
            self.images.counts[name, "dropped"],
            {other: proportion(yes, yes + no) for other, (yes, no) in agrees.items()},
            {other: Pairs(*(self.labelled[name, other, *right] for right in outcomes)) for other in pairs},
        )
