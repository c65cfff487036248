"""A canary: another version of a member answers a share of the images, and is rolled back where it is worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from deployments.contract.caller import ADDRESS
from deployments.contract.nodes import Node
from deployments.contract.rollout import SUFFIX
from deployments.ingress.extension import Report
from graph.features.canary.comparison import Comparison
from graph.features.canary.flow import Canary
from graph.features.canary.metrics import CanaryMetrics
from graph.features.canary.trial import CanaryStats, Trial
from graph.features.feature import Feature, Site
from graph.pipeline.copies import PixelTap, ShadowInterceptor
from graph.pipeline.pipeline import Answered, InFlight, Pipeline
from graph.pipeline.record import Trials
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

SECTION = "canaries"


class Canaries(Feature):
    """Puts both versions of a member in the member's place."""

    order = 20
    section = "members.*.canary"

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        metrics, asking, nodes = CanaryMetrics(), config.ensemble, site.nodes
        trials = [Trial(each.name, each.canary, metrics) for each in config.members if each.canary is not None]
        turns = 1 if asking.cascade is None else len(asking.cascade.order)
        metrics.follow(trials)
        self.members = {
            each.name: Canary(nodes[each.name], nodes[f"{each.name}{SUFFIX}"], each, asking.patience_ms, turns)
            for each in trials
        }
        keys = {each.name: agreed.preprocessing[each.name].key for each in trials}
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        comparisons = [
            Comparison(each, {"canary": nodes[f"{each.name}{SUFFIX}"], "stable": nodes[each.name]}, keys[each.name])
            for each in trials
        ]
        self.interceptor = Drawing(trials, comparisons, self._tap, asking.patience_ms)
        self.live = {SECTION: {trial.name: trial for trial in trials}}
        self.headers = [ADDRESS, *(trial.header for trial in trials if trial.header is not None)]
        self.reports = {
            SECTION: Report(dict[str, CanaryStats], lambda: {trial.name: trial.figures() for trial in trials})
        }

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Whether a member has a canary."""
        return any(member.canary is not None for member in config.members)

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """Put the tap before the members."""
        return Pipeline(self._tap, asker)


class Drawing(ShadowInterceptor):
    """Draws the images that canaries answer, has them compared, and counts how the answers compare."""

    def __init__(
        self, trials: Sequence[Trial], comparisons: Sequence[Comparison], tap: PixelTap, patience_ms: int | None
    ) -> None:
        super().__init__(comparisons, tap, patience_ms)
        self._trials = trials

    def on_request(self, batch: InFlight) -> None:
        """Mark the images of each canary."""
        for position, image in batch.images.items():
            by = batch.sent.items[position].caller
            if drawn := tuple(trial.name for trial in self._trials if trial.takes(image, by)):
                batch.items[position] = batch.items[position].with_note(Trials(drawn))
        super().on_request(batch)

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Note which version has answered, and whether most of the other members agreed."""
        for _, item, record in batch.answered(positions, part):
            for trial in self._trials:
                name = trial.name
                if name in item.versions:
                    record.versions[name] = str(item.versions[name])
                others = Counter(record.without(name))
                if others and (index := record.members.get(name)) is not None:
                    agrees = others[index] == max(others.values())
                    trial.predicted(name in Trials.of(item), item.versions.get(name), agrees)
        return part
