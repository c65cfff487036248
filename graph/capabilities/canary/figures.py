"""What `/stats` reports of a canary."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from graph.capabilities.proportion import Proportion


class VersionStats(msgspec.Struct, frozen=True):
    """A version of a member that has a canary."""

    images: Annotated[int, Meta(description="that it was asked about")]
    failed: Annotated[int, Meta(description="of these, that it alone failed on")]
    agreed: Annotated[Proportion, Meta(description="with the ensemble's answer")]
    median_ms: Annotated[float | None, Meta(description="of an image, in the window that decides; null of none")]


class CanaryStats(msgspec.Struct, frozen=True):
    """A canary, since the start of the ingress replica."""

    share: Annotated[float, Meta(description="in force")]
    rolled_back: Annotated[str, Meta(description="`failures` or `latency`, if it has ended by itself; else empty")]
    canary: VersionStats
    stable: VersionStats
