"""A canary: a member's other version answers a share of the images, and ends by itself where it is worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from deployments.contract.item import Item
from deployments.contract.rollout import SUFFIX, CanaryConfig
from deployments.ingress.extension import Report
from graph.capabilities.canary.figures import CanaryStats
from graph.capabilities.canary.flow import Canary
from graph.capabilities.canary.metrics import CanaryMetrics
from graph.capabilities.canary.trial import Trial
from graph.capabilities.capability import Capability, Planned, Site
from graph.flows.intercepted import InFlight, Interceptor

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

SECTION = "canaries"


def planned(config: EnsembleConfig, _: Agreement) -> Planned | None:
    """The canaries, if a member has one."""
    canaries = {member.name: member.canary for member in config.members if member.canary is not None}
    cascade = config.ensemble.cascade
    turns = 1 if cascade is None else len(cascade.order)
    return partial(Canaries, canaries, config.ensemble.patience_ms, turns) if canaries else None


class Canaries(Capability):
    """Puts both versions of a member in its place."""

    def __init__(self, canaries: Mapping[str, CanaryConfig], patience_ms: int | None, turns: int, site: Site) -> None:
        """Set each member's other version, how long members may take, and how many are asked one after the other."""
        counts = CanaryMetrics()
        trials = [Trial(name, config, counts) for name, config in canaries.items()]
        counts.follow(trials)
        self.members = {
            each.name: Canary(site.nodes[each.name], site.nodes[f"{each.name}{SUFFIX}"], each, patience_ms, turns)
            for each in trials
        }
        self.interceptor = Drawing(trials)
        self.live = {f"{SECTION}.{trial.name}": trial for trial in trials}
        self.sections = {SECTION: f"{SECTION}."}
        self.headers = [trial.header for trial in trials if trial.header is not None]
        self.reports = {
            SECTION: Report(dict[str, CanaryStats], lambda: {trial.name: trial.figures() for trial in trials})
        }


class Drawing(Interceptor):
    """Draws the images that a canary answers, and counts how the answers compare."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        """Set the canaries."""
        self._trials = trials

    def on_request(self, batch: InFlight) -> None:
        """Mark the images of each canary."""
        for position in batch.positions:
            by, image = batch.sent[position].by, batch.images[position]
            if drawn := tuple(trial.name for trial in self._trials if trial.takes(image, by)):
                batch.items[position] = replace(batch.items[position], trials=drawn)

    def on_answer(self, batch: InFlight, position: int, item: Item) -> None:
        """Note which version has answered, and whether it agreed with the ensemble."""
        record = batch.records[position]
        for trial in self._trials:
            name = trial.name
            if name in item.versions:
                record.versions[name] = str(item.versions[name])
            if (index := record.members.get(name)) is not None:
                trial.voted(name in item.trials, item.versions.get(name), index == record.index)
