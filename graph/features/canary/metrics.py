"""What is counted of canaries, for Prometheus and for `/stats`."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from statistics import median

from deployments.observe.metrics import SECONDS, TaggedCounter, TaggedGauge, TaggedHistogram, report_periodically
from graph.features.canary.trial import CanaryStats, LabelledPairs, Trial, VersionStats
from graph.features.proportion import proportion


class CanaryMetrics:
    """What the ingress counts of members with a canary; the role is `canary` or `stable`.

    Attributes:
        compared: images that both versions were asked about, by member, and by whether they agreed.
        labelled: these with a true label, by member, and by whether the canary and the stable version were right.
    """

    def __init__(self) -> None:
        self.images = TaggedCounter(
            "ensemble_canary_images",
            "Images that a version of a member received, by whether it alone failed on them.",
            *("member", "role", "failed"),
        )
        self.predictions = TaggedCounter(
            "ensemble_canary_predictions",
            "Images by the version of a member that answered, and by whether most of the other members agreed.",
            *("member", "role", "version", "agrees"),
        )
        self.rollbacks = TaggedCounter(
            "ensemble_canary_rollbacks",
            "Canaries that were rolled back, by the reason: failures, latency or answers.",
            *("member", "reason"),
        )
        self.compared: Tally[tuple[str, bool]] = Tally()
        self.labelled: Tally[tuple[str, bool, bool]] = Tally()
        self._duration = TaggedHistogram(
            "ensemble_canary_duration_seconds",
            "Time that a version of a member took for its images of a batch.",
            SECONDS,
            *("member", "role"),
        )
        self._share = TaggedGauge("ensemble_canary_share", "Share of the images in force.", "member")
        self._rolled_back = TaggedGauge(
            "ensemble_canary_rolled_back", "1 for a canary that was rolled back, by the reason.", "member", "reason"
        )

    def took(self, member: str, role: str, seconds: float) -> None:
        """Count the time that a version took for a batch."""
        self._duration.observe(seconds, member, role)

    def figures(self, trial: Trial) -> CanaryStats:
        """Return the figures of a canary for `/stats`."""
        name = trial.name
        canary, stable = (self._version(name, role, seconds) for role, seconds in trial.seconds.items())
        agreed, differed = (self.compared[name, outcome] for outcome in (True, False))
        outcomes = (True, True), (True, False), (False, True), (False, False)
        pairs = LabelledPairs(*(self.labelled[name, *right] for right in outcomes))
        both = proportion(agreed, agreed + differed)
        return CanaryStats(trial.share, trial.rolled_back, trial.found, canary, stable, both, pairs)

    def _version(self, member: str, role: str, seconds: Sequence[float]) -> VersionStats:
        answered, failed = (self.images.counts[member, role, outcome] for outcome in (False, True))
        predicted = [(key[3], n) for key, n in self.predictions.counts.items() if key[:2] == (member, role)]
        agreed = proportion(sum(n for agrees, n in predicted if agrees), sum(n for _, n in predicted))
        return VersionStats(answered + failed, failed, agreed, round(median(seconds) * 1000, 3) if seconds else None)

    def follow(self, trials: Sequence[Trial]) -> None:
        """Report the shares in force."""

        def report() -> None:
            for each in trials:
                self._share.set(each.share, each.name)
                if each.rolled_back:
                    self._rolled_back.set(1.0, each.name, each.rolled_back)

        report_periodically(report, "canary metrics")
