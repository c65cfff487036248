"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from deployments.contract.nodes import Node
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.extension import Report
from deployments.observe.metrics import TaggedCounter
from graph.features.feature import Feature, Site
from graph.features.proportion import Counts, count_by_rightness, proportion
from graph.features.shadow.flow import Pairs, Shadow, ShadowStats
from graph.pipeline.copies import PixelTap, ShadowInterceptor
from graph.pipeline.member_client import Member
from graph.pipeline.pipeline import Pipeline
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


class ShadowMetrics:
    """What the ingress counts of shadows.

    Attributes:
        labelled: images with a true label, by shadow, by what it is compared with, and by whether each was right.
    """

    def __init__(self) -> None:
        self.images: Counts = TaggedCounter(
            "ensemble_shadow_images",
            "Images drawn for a shadow, by what came of them: compared, failed or dropped.",
            *("member", "result"),
        )
        self.predictions: Counts = TaggedCounter(
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
        return ShadowStats(
            replaces,
            self.images.counts[name, "failed"],
            self.images.counts[name, "dropped"],
            {other: proportion(yes, yes + no) for other, (yes, no) in agrees.items()},
            {other: Pairs(*count_by_rightness(self.labelled, name, other)) for other in pairs},
        )


SECTION = "shadows"


class Shadows(Feature):
    """Keeps pixels on their way to the members, and sends copies of them to the shadows after the answers."""

    order = 30
    section = "members.*.role: shadow"

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        metrics = ShadowMetrics()
        keys = {name: agreed.preprocessing[name].key for name in config.shadows}
        shadows = [
            Shadow(
                name,
                Member(site.nodes[name], keys[name]),
                ShadowSettings(share=member.share or 0.0),
                config.replaced(member),
                metrics,
            )
            for name, member in config.shadows.items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        self.interceptor = ShadowInterceptor(shadows, self._tap, config.ensemble.patience_ms)
        self.live = {SECTION: {shadow.name: shadow for shadow in shadows}}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in shadows})
        }

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Tell whether a member is a shadow."""
        return bool(config.shadows)

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """Put the tap before the members."""
        return Pipeline(self._tap, asker)
