"""How another version of a member, or another model, is tried on what comes in: its configuration and its figures."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import Field

from deployments.contract.errors import UnknownRequest
from deployments.contract.settings import Schema

HEADER = "header:"
# A canary's node is called after its member: `resnet-canary`.
SUFFIX = "-canary"
# True labels told at once; characters of a request's id; the highest position of an image in its request.
MOST_LABELS, LONGEST_ID, MOST_PLACE = 4096, 256, 100_000


def no_labels() -> UnknownRequest:
    """The error of a true label that is told where none are taken."""
    return UnknownRequest("no labels are taken; configure `feedback`")


class CanarySettings(Schema):
    """How many images a member's other version answers, and when that ends by itself."""

    share: float = Field(ge=0, le=1, description="of the images, or of the values of `key`, that it answers")
    max_failures: float = Field(0.05, ge=0, lt=1, description="share of its images that it may fail on")
    max_slowdown: float = Field(
        3.0, ge=1, le=1000, description="its median time for an image, relative to the other version's"
    )
    window: int = Field(1000, ge=10, le=100_000, description="the last so many images of each version decide")
    least: int = Field(50, ge=1, le=100_000, description="images of a version before which nothing is decided")


class CanaryConfig(CanarySettings):
    """A member's other version."""

    version: Annotated[int | str, Field(union_mode="left_to_right")] = Field(description="which one")
    key: str = Field(
        "image",
        pattern=r"^(image|header:[A-Za-z0-9_-]{1,64})$",
        description="images alike in it go to the same version: `header:<name>` of the request, or the image itself",
    )

    @property
    def header(self) -> str | None:
        """The header's name in small letters; None if the image decides."""
        return self.key.removeprefix(HEADER).lower() if self.key.startswith(HEADER) else None


class ShadowSettings(Schema):
    """How many images a shadow gets a copy of."""

    share: float = Field(ge=0, le=1, description="of the images")
    max_queue_ms: float = Field(
        100.0, ge=0, le=60_000, description="it gets none of a batch of which an image has waited longer, ms"
    )


class Proportion(msgspec.Struct, frozen=True):
    """A share that was counted."""

    count: Annotated[int, Meta(description="how many it is true of")]
    total: Annotated[int, Meta(description="of how many")]
    share: Annotated[float | None, Meta(description="their ratio; null of none")]
    low: Annotated[float, Meta(description="lower end of its 95 % interval (Wilson's)")]
    high: Annotated[float, Meta(description="upper end")]


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


class FeedbackStats(msgspec.Struct, frozen=True):
    """What feedback told, since the start of the ingress replica: how often each was right."""

    remembered: Annotated[int, Meta(description="answers of which the label may be told")]
    labels: Annotated[dict[str, int], Meta(description="that were told: `accepted`, or by the error's code")]
    ensemble: Proportion
    members: dict[str, Proportion]
    versions: Annotated[dict[str, dict[str, Proportion]], Meta(description="of members that have a canary")]
    exits: Annotated[dict[str, Proportion], Meta(description="by the last member that a cascade asked")]
    shadows: dict[str, Proportion]


class RolloutStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is tried."""

    canaries: dict[str, CanaryStats] = {}
    shadows: dict[str, ShadowStats] = {}
    feedback: FeedbackStats | None = None
