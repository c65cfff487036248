"""Shadows: models that get copies of images, and are compared with the answers; nobody waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from deployments.contract.nodes import Node
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.extension import Report
from graph.capabilities.capability import Capability, Planned, Site
from graph.capabilities.shadow.figures import ShadowStats
from graph.capabilities.shadow.flow import Copy, Shadow
from graph.capabilities.shadow.metrics import ShadowMetrics
from graph.capabilities.shadow.tap import PixelTap
from graph.flows.asked import Member
from graph.flows.intercepted import InFlight, Interceptor
from graph.flows.pipeline import Pipeline

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

SECTION = "shadows"
# How many copies a shadow gets, the key of its pixels, and the member that it is compared with.
Copies = tuple[ShadowSettings, str, str]


def planned(config: EnsembleConfig, agreed: Agreement) -> Planned | None:
    """The shadows, if there are members with that role."""
    copies = {
        name: (ShadowSettings(share=member.share), agreed.preprocessing[name].key, config.replaced(member))
        for name, member in config.shadows.items()
        if member.share is not None
    }
    return partial(Shadows, copies, config.ensemble.patience_ms) if copies else None


class Shadows(Capability):
    """Takes copies of pixels on their way to the members, and asks the shadows once the images are answered."""

    def __init__(self, copies: Mapping[str, Copies], patience_ms: int | None, site: Site) -> None:
        """Set what each shadow gets, by its name, and how long it may take."""
        counts = ShadowMetrics()
        shadows = [
            Shadow(name, Member(site.nodes[name], key), settings, replaces, counts)
            for name, (settings, key, replaces) in copies.items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(key for _, key, _ in copies.values())))
        self.interceptor = Copying(shadows, self._tap, patience_ms)
        self.live = {f"{SECTION}.{shadow.name}": shadow for shadow in shadows}
        self.sections = {SECTION: f"{SECTION}."}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in shadows})
        }

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """The tap, and what asks the members."""
        return Pipeline(self._tap, asker)


class Copying(Interceptor):
    """Draws the images of which a shadow gets a copy, and hands the copies on when all are answered."""

    def __init__(self, shadows: Sequence[Shadow], tap: PixelTap, patience_ms: int | None) -> None:
        """Set the shadows, what keeps their pixels, and how long they may take."""
        self._shadows, self._tap, self._patience_ms = shadows, tap, patience_ms
        self._drawn: dict[InFlight, dict[Shadow, list[int]]] = {}

    def on_request(self, batch: InFlight) -> None:
        """Draw images; each gets a number, by which the tap knows it."""
        drawn = {shadow: positions for shadow in self._shadows if (positions := shadow.draw(batch.items))}
        for position in {position for positions in drawn.values() for position in positions}:
            number = self._tap.want()
            batch.items[position] = replace(batch.items[position], number=number)
        self._drawn[batch] = drawn

    def on_end(self, batch: InFlight) -> None:
        """Hand the copies on; what a cache remembers has no pixels."""
        kept = {position: self._tap.take(item.number) for position, item in enumerate(batch.items) if item.number}
        copies: dict[int, Copy] = {
            position: (copy, batch.records[position])
            for position, copy in kept.items()
            if copy is not None and position in batch.records
        }
        for shadow, positions in self._drawn.pop(batch).items():
            if copied := [copies[position] for position in positions if position in copies]:
                shadow.ask(copied, self._patience_ms)
