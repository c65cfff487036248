"""Metrics of feedback."""

from __future__ import annotations

from ray.serve.metrics import Counter

from deployments.observe.metrics import tag_keys


class FeedbackMetrics:
    """What the ingress counts of true labels."""

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
