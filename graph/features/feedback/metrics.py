"""What is counted of true labels, for Prometheus and for `/stats`."""

from __future__ import annotations

from deployments.observe.metrics import TaggedCounter
from graph.features.feedback.store import FeedbackStats
from graph.features.proportion import Counts, Proportion, proportion
from graph.pipeline.record import ENSEMBLE


class FeedbackMetrics:
    """What the ingress counts of true labels."""

    def __init__(self) -> None:
        self.labels: Counts = TaggedCounter(
            "ensemble_feedback_labels", "True labels that were sent: accepted, or the code of the error.", "result"
        )
        self.answers: Counts = TaggedCounter(
            "ensemble_feedback_answers",
            "Images with a true label, by whether the ensemble, a member, a version, an exit or a shadow was right.",
            *("kind", "name", "version", "right"),
        )

    def figures(self, remembered: int) -> FeedbackStats:
        """Return the figures for `/stats`; `remembered` answers still accept their labels."""
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
