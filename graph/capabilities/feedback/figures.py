"""What `/stats` reports of feedback."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from graph.capabilities.proportion import Proportion


class FeedbackStats(msgspec.Struct, frozen=True):
    """What feedback told, since the start of the ingress replica: how often each was right."""

    remembered: Annotated[int, Meta(description="answers of which the label may be told")]
    labels: Annotated[dict[str, int], Meta(description="that were told: `accepted`, or by the error's code")]
    ensemble: Proportion
    members: dict[str, Proportion]
    versions: Annotated[dict[str, dict[str, Proportion]], Meta(description="of members that have a canary")]
    exits: Annotated[dict[str, Proportion], Meta(description="by the last member that a cascade asked")]
    shadows: dict[str, Proportion]
