"""What `/stats` reports of a shadow."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from graph.capabilities.proportion import Proportion


class Pairs(msgspec.Struct, frozen=True):
    """Images with a known label, by which of two answers was right."""

    both: int
    shadow_only: int
    other_only: int
    neither: int


class ShadowStats(msgspec.Struct, frozen=True):
    """A shadow, since the start of the ingress replica."""

    replaces: Annotated[str, Meta(description="the member that it is compared with; empty for none")]
    failed: Annotated[int, Meta(description="images that it has no answer to")]
    dropped: Annotated[int, Meta(description="images that were drawn and not given to it")]
    agreed: Annotated[
        dict[str, Proportion], Meta(description="with the `ensemble`, and with the member that it replaces")
    ]
    labelled: Annotated[dict[str, Pairs], Meta(description="where feedback told the label, likewise")]
