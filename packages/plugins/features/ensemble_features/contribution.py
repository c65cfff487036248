"""Contributions: the answers that each member has changed, and of the labelled ones, mended or spoiled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from deployments.contract.item import MemberPrediction
from deployments.ingress.protocol import Report
from deployments.observe.metrics import TaggedCounter
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from ensemble_features.feedback.store import FeedbackSettings
from ensemble_features.proportion import MakesCounts, Proportion, proportion
from ensemble_features.record import answered
from graph.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# Seconds between two updates of Prometheus' counters, each of which costs as much as a hundred counts here.
EVERY_S = 1.0
# What an answer is without a member, and what is counted of one with a true label.
SAME, CHANGED, LABELLED, MENDED, SPOILED = "same", "changed", "labelled", "mended", "spoiled"
# A member, its version, and one of these.
Count = tuple[str, str, str]


class Contribution(msgspec.Struct, frozen=True):
    """What a version of a member has added to the answers since the start of the ingress replica."""

    changed: Annotated[Proportion, Meta(description="answers with another label without the member, of its answers")]
    labelled: Annotated[int, Meta(description="answers with a true label")]
    mended: Annotated[int, Meta(description="labelled answers that are right, and would be wrong without the member")]
    spoiled: Annotated[int, Meta(description="labelled answers that are wrong, and would be right without the member")]


class ContributionInterceptor(Interceptor):
    """Counts the answers that members decide."""

    def __init__(self, counter: MakesCounts, is_labelled: bool) -> None:
        """Set what makes counters, and whether true labels may arrive."""
        self._counter = counter(
            "ensemble_member_contributions",
            "Answers by whether a member changed them, and whether it mended or spoiled the labelled ones.",
            *("member", "version", "outcome"),
        )
        self._is_labelled = is_labelled
        self._counts: Counter[Count] = Counter()
        self._reported: Counter[Count] = Counter()
        self._update: asyncio.TimerHandle | None = None

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Count the members' parts in the answers to images that clients sent."""
        for place in part.live:
            item = part.items[place]
            # A member by itself has no share: without it there is no answer.
            if len(item.predictions) > 1 and batch.sent.items[positions[place]].queued_ns:
                for name, each in item.predictions.items():
                    version = str(item.versions.get(name, ""))
                    self._counts[name, version, SAME if each.without is None else CHANGED] += 1
        if self._is_labelled:
            for _, item, record in answered(batch, positions, part):
                if len(item.predictions) > 1:
                    versions = {name: str(item.versions.get(name, "")) for name in item.predictions}
                    record.when_labelled(partial(self._judge, record.index, item.predictions, versions))
        return part

    def on_end(self, batch: InFlight) -> None:
        """Let Prometheus' counters be updated soon, with what other batches count until then."""
        if self._update is None:
            self._update = asyncio.get_running_loop().call_later(EVERY_S, self.report)

    def report(self) -> None:
        """Update Prometheus' counters."""
        self._update = None
        new = self._counts - self._reported
        self._reported = Counter(self._counts)
        for each, count in new.items():
            self._counter.add(*each, count=count)

    def _judge(
        self, index: int, predictions: Mapping[str, MemberPrediction], versions: Mapping[str, str], label: int
    ) -> None:
        """Count what each member did to an answer with a true label."""
        for name, each in predictions.items():
            self._counts[name, versions[name], LABELLED] += 1
            if each.without is not None and label in (index, each.without):
                self._counts[name, versions[name], MENDED if label == index else SPOILED] += 1

    def figures(self) -> dict[str, dict[str, Contribution]]:
        """Return the figures of each member by version."""
        found: dict[str, dict[str, Contribution]] = {}
        for name, version in sorted({each[:2] for each in self._counts}):
            count = {each: self._counts[name, version, each] for each in (SAME, CHANGED, LABELLED, MENDED, SPOILED)}
            changed = proportion(count[CHANGED], count[SAME] + count[CHANGED])
            of_version = Contribution(changed, count[LABELLED], count[MENDED], count[SPOILED])
            found.setdefault(name, {})[version] = of_version
        return found


class Contributions(Feature):
    """Shows which member is worth its cost while it serves."""

    order = 90
    always = True

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        if len(config.voters) > 1:
            interceptor = ContributionInterceptor(
                TaggedCounter, any(isinstance(each.section, FeedbackSettings) for each in config.owned)
            )
            self.interceptor = interceptor
            self.reports = {"contributions": Report(dict[str, dict[str, Contribution]], interceptor.figures)}
