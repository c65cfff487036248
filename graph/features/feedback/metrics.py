"""What is counted of true labels, for Prometheus and for `/stats`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deployments.observe.metrics import TaggedCounter
from graph.features.proportion import Proportion, proportion
from graph.pipeline.record import ENSEMBLE


class FeedbackStats(msgspec.Struct, frozen=True):
    """True labels since the start of the ingress replica, and how often each prediction was right."""

    remembered: Annotated[int, Meta(description="answers whose true label is still accepted")]
    labels: Annotated[dict[str, int], Meta(description="labels that were sent: `accepted`, or the error's code")]
    ensemble: Proportion
    members: dict[str, Proportion]
    versions: Annotated[dict[str, dict[str, Proportion]], Meta(description="of members that have a canary")]
    exits: Annotated[dict[str, Proportion], Meta(description="by the last member that a cascade called")]
    shadows: dict[str, Proportion]


class FeedbackMetrics:
    """What the ingress counts of true labels."""

    def __init__(self) -> None:
        self.labels = TaggedCounter(
            "ensemble_feedback_labels", "True labels that were sent: accepted, or the code of the error.", "result"
        )
        self.answers = TaggedCounter(
            "ensemble_feedback_answers",
            "Images with a true label, by whether the ensemble, a member, a version, an exit or a shadow was right.",
            *("kind", "name", "version", "right"),
        )

    def figures(self, remembered: int) -> FeedbackStats:
        """What `/stats` reports; `remembered` answers still accept their labels."""
        shares: dict[str, dict[str, dict[str, Proportion]]] = {}
        for kind, name, version in sorted({tuple(map(str, key[:3])) for key in self.answers.counts}):
            right, wrong = (self.answers.counts[kind, name, version, outcome] for outcome in (True, False))
            shares.setdefault(kind, {}).setdefault(name, {})[version] = proportion(right, right + wrong)

        def of(kind: str) -> dict[str, Proportion]:
            return {name: by_version[""] for name, by_version in shares.get(kind, {}).items()}

        return FeedbackStats(
            remembered,
            {str(result): count for (result,), count in self.labels.counts.items()},
            of(ENSEMBLE).get("", proportion(0, 0)),
            of("member"),
            shares.get("version", {}),
            of("exit"),
            of("shadow"),
        )
