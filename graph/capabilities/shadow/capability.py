"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from deployments.contract.nodes import Node
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.extension import Report
from graph.capabilities.capability import Capability, Site
from graph.capabilities.shadow.flow import Copy, Shadow
from graph.capabilities.shadow.metrics import ShadowMetrics, ShadowStats
from graph.capabilities.shadow.tap import PixelTap
from graph.flows.intercepted import Answered, InFlight, Interceptor
from graph.flows.member import Member
from graph.flows.pipeline import Pipeline

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

SECTION = "shadows"


class Shadows(Capability):
    """Keeps pixels on their way to the members, and sends copies of them to the shadows after the answers."""

    order = 30

    def __init__(self, config: EnsembleConfig, agreed: Agreement, site: Site) -> None:
        metrics = ShadowMetrics()
        keys = {name: agreed.preprocessing[name].key for name in config.shadows}
        shadows = [
            Shadow(
                name,
                Member(site.nodes[name], keys[name]),
                ShadowSettings(share=member.share or 0.0),
                config.replaced(member),
                metrics,
            )
            for name, member in config.shadows.items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        self.interceptor = Copying(shadows, self._tap, config.ensemble.patience_ms)
        self.live = {SECTION: {shadow.name: shadow for shadow in shadows}}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in shadows})
        }

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Whether a member is a shadow."""
        return bool(config.shadows)

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """The tap, and after it the members."""
        return Pipeline(self._tap, asker)


class Copying(Interceptor):
    """Draws the images that shadows get copies of, and sends the copies when the whole batch is answered."""

    def __init__(self, shadows: Sequence[Shadow], tap: PixelTap, patience_ms: int | None) -> None:
        """Set the shadows, the tap that keeps their pixels, and how long each shadow may take."""
        self._shadows, self._tap, self._patience_ms = shadows, tap, patience_ms
        self._drawn: dict[InFlight, dict[Shadow, list[int]]] = {}

    def on_request(self, batch: InFlight) -> None:
        """Draw images, and give each the number by which the tap finds it."""
        drawn = {shadow: positions for shadow in self._shadows if (positions := shadow.draw(batch.items))}
        for position in {position for positions in drawn.values() for position in positions}:
            batch.items[position] = replace(batch.items[position], image_id=self._tap.want())
        self._drawn[batch] = drawn

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Keep the predictions, which the shadows' are compared with."""
        if self._drawn[batch]:
            batch.answered(positions, part)
        return part

    def on_end(self, batch: InFlight) -> None:
        """Send the copies; an image that a cache answered has no pixels."""
        kept = {position: self._tap.take(item.image_id) for position, item in enumerate(batch.items) if item.image_id}
        copies: dict[int, Copy] = {
            position: (copy, batch.records[position])
            for position, copy in kept.items()
            if copy is not None and position in batch.records
        }
        for shadow, positions in self._drawn.pop(batch).items():
            if copied := [copies[position] for position in positions if position in copies]:
                shadow.ask(copied, self._patience_ms)
