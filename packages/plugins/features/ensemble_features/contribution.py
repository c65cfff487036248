"""Contributions: the answers that each member has changed, and of the labelled ones, mended or spoiled."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.counting import TaggedCounter
from deployments.contract.item import Item
from deployments.ingress.protocol import Report, Served, Service
from deployments.observe.observer import Watcher
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from ensemble_features.feedback.store import FeedbackSettings
from ensemble_features.proportion import Proportion, proportion
from ensemble_features.record import Record, answered
from graph.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# What an answer is without a member, and what is counted of one with a true label.
OUTCOMES = SAME, CHANGED, LABELLED, MENDED, SPOILED = "same", "changed", "labelled", "mended", "spoiled"
# By member, version and what its answer is without it: None for the same.
Shares = Mapping[tuple[str, str], int | None]


class Contribution(msgspec.Struct, frozen=True):
    """What a version of a member has added to the answers since the start of the ingress replica."""

    changed: Annotated[Proportion, Meta(description="answers with another label without the member, of its answers")]
    labelled: Annotated[int, Meta(description="answers with a true label")]
    mended: Annotated[int, Meta(description="labelled answers that are right, and would be wrong without the member")]
    spoiled: Annotated[int, Meta(description="labelled answers that are wrong, and would be right without the member")]


def shares(item: Item) -> Shares:
    """Return what an answer would be without each member, by the member and its version; a lone member has no share."""
    if len(item.predictions) < 2:
        return {}
    return {(name, str(item.versions.get(name, ""))): each.without for name, each in item.predictions.items()}


class ContributionCounts(Interceptor, Watcher):
    """Counts the answers that members decide: all of them after they were given, and again those with a true label."""

    def __init__(self) -> None:
        self._counter = TaggedCounter(
            "ensemble_member_contributions",
            "Answers by whether a member changed them, and whether it mended or spoiled the labelled ones.",
            *("member", "version", "outcome"),
        )

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count the members' shares in the answers of a batch."""
        for position in batch.live:
            for member, without in shares(batch.items[position]).items():
                self._counter.add(*member, SAME if without is None else CHANGED)

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Count the members' shares again once the true label of an answer is known."""
        for _, item, record in answered(batch, positions, part):
            record.when_labelled(partial(self._judge, record, shares(item)))
        return part

    def _judge(self, record: Record, of_members: Shares, label: int) -> None:
        for member, without in of_members.items():
            self._counter.add(*member, LABELLED)
            if without is not None and label in (record.index, without):
                self._counter.add(*member, MENDED if label == record.index else SPOILED)

    def figures(self) -> dict[str, dict[str, Contribution]]:
        """Return the figures of each member by version."""
        found: dict[str, dict[str, Contribution]] = {}
        counts = self._counter.counts
        for name, version in sorted({(str(name), str(version)) for name, version, _ in counts}):
            same, changed, *labelled = (counts[name, version, each] for each in OUTCOMES)
            of_version = Contribution(proportion(changed, same + changed), *labelled)
            found.setdefault(name, {})[version] = of_version
        return found


class Contributions(Feature):
    """Shows which member is worth its cost while it serves."""

    order = 90
    always = True

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        self._counts = ContributionCounts() if len(config.voters) > 1 else None
        if self._counts is None:
            return
        self.reports = {"contributions": Report(dict[str, dict[str, Contribution]], self._counts.figures)}
        if any(isinstance(each.section, FeedbackSettings) for each in config.owned):
            self.interceptor = self._counts

    def serve(self, service: Service) -> Served:
        """Count the members' shares in every answer, once it was given."""
        if self._counts is not None:
            service.ingress.observer.watch(self._counts)
        return Served()
