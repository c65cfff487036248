"""A canary: another version of a member answers a share of the images, and is rolled back where it is worse."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deployments.contract.caller import ADDRESS
from deployments.contract.nodes import Node
from deployments.ingress.protocol import Report, Served, Service
from deployments.members.local import LocalMember
from deployments.observe.metrics import SECONDS, TaggedGauge, TaggedHistogram, report_periodically
from deployments.pipeline.pipeline import Answered, InFlight, Pipeline
from deployments.repository.address import split_model
from deployments.repository.repository import remember_rollback
from ensemble_features.canary.flow import Canary, Comparison
from ensemble_features.canary.section import SECTION, CanarySection, canaries
from ensemble_features.canary.settings import SUFFIX
from ensemble_features.canary.trial import CanaryCounters, CanaryStats, Trial
from ensemble_features.record import PixelTap, ShadowInterceptor, Trials, answered
from graph.feature import Feature, Site, Stage
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

logger = logging.getLogger("ray.serve")


def counters() -> CanaryCounters:
    """Make what the ingress counts of members with a canary."""
    took = TaggedHistogram(
        "ensemble_canary_duration_seconds",
        "Time that a version of a member took for its images of a batch.",
        SECONDS,
        *("member", "role"),
    )
    return CanaryCounters(took.observe)


def remember(config: EnsembleConfig, trial: Trial) -> None:
    """Note beside the model that its canary was rolled back, so that "the highest version" is another one."""
    member = next(each for each in config.members if each.name == trial.name)
    canary = member.of(CanarySection).canary
    if not isinstance(member, LocalMember) or canary is None:
        return
    address, name = split_model(member.model_name)
    if isinstance(root := address or config.model_repository, Path):
        try:
            remember_rollback(root, name, int(canary.version), f"{trial.rolled_back}: {trial.found}")
        except OSError as err:
            logger.warning("the rollback of version %s of %r is not remembered: %s", canary.version, name, err)


def follow(trials: Sequence[Trial], on_rollback: Callable[[Trial], None]) -> None:
    """Report the shares in force, and once each canary that was rolled back."""
    noted = set[str]()
    share = TaggedGauge("ensemble_canary_share", "Share of the images that a canary answers.", "member")
    rolled_back = TaggedGauge(
        "ensemble_canary_rolled_back", "1 for a canary that was rolled back, by the reason.", "member", "reason"
    )

    def report() -> None:
        for each in trials:
            share.set(each.share, each.name)
            if each.rolled_back:
                rolled_back.set(1.0, each.name, each.rolled_back)
                if each.name not in noted:
                    on_rollback(each)
                    noted.add(each.name)

    report_periodically(report, "canary metrics")


class Canaries(Feature):
    """Puts both versions of a member in the member's place."""

    order = 20
    sections = (CanarySection,)

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        counted, patience_ms, nodes = counters(), config.ensemble.patience_ms, site.nodes
        trials = [Trial(name, canary, counted) for name, canary in canaries(config).items()]
        turns = len(config.voters) if config.in_turn else 1
        follow(trials, partial(remember, config))
        self._canaries = {
            each.name: Canary(nodes[each.name], nodes[f"{each.name}{SUFFIX}"], each, patience_ms, turns)
            for each in trials
        }
        keys = {each.name: agreed.preprocessing[each.name].key for each in trials}
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        comparisons = [
            Comparison(each, {"canary": nodes[f"{each.name}{SUFFIX}"], "stable": nodes[each.name]}, keys[each.name])
            for each in trials
        ]
        self.interceptor = TrafficSplit(trials, comparisons, self._tap, patience_ms)
        self._trials = {trial.name: trial for trial in trials}
        self._headers = [ADDRESS, *(trial.header for trial in trials if trial.header is not None)]
        self.reports = {
            SECTION: Report(dict[str, CanaryStats], lambda: {trial.name: trial.figures() for trial in trials})
        }

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Put both versions in the member's place, and the tap before the members."""
        if stage.kind == "member":
            return self._canaries.get(stage.name, node)
        return Pipeline(self._tap, node) if stage.kind == "asker" else node

    def serve(self, service: Service) -> Served:
        """Read the headers that decide which version answers, and whose images count."""
        return Served(headers=self._headers, live={SECTION: self._trials})


class TrafficSplit(ShadowInterceptor):
    """Splits the images between the versions, has them compared, and counts how the answers compare."""

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
        for _, item, record in answered(batch, positions, part):
            for trial in self._trials:
                name = trial.name
                if name in item.versions:
                    record.versions[name] = str(item.versions[name])
                others = Counter(record.without(name))
                if others and (index := record.members.get(name)) is not None:
                    agrees = others[index] == max(others.values())
                    trial.predicted(name in Trials.of(item), item.versions.get(name), agrees)
        return part
