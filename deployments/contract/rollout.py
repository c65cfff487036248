"""How another version of a member, or another model, is tried on what comes in: the settings of a member for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deployments.contract.settings import Schema

HEADER = "header:"
# A canary's node is called after its member: `resnet-canary`.
SUFFIX = "-canary"


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
