"""The settings of a member's canary, by which another version is tried on live requests."""

from typing import Annotated

from pydantic import Field

from deployments.contract.settings import Schema

# The name of a canary's node is that of its member and this: `resnet-canary`.
SUFFIX = "-canary"


class CanarySettings(Schema):
    """How many images a canary answers, and when it is rolled back."""

    share: float = Field(ge=0, le=1, description="share of the images, or of the values of `key`, that it answers")
    max_failures: float = Field(0.05, ge=0, lt=1, description="highest share of its images on which it may fail")
    max_slowdown: float = Field(
        3.0, ge=1, le=1000, description="highest time for the same images, relative to the other version's"
    )
    least: int = Field(50, ge=1, le=100_000, description="fewest images of the canary before it is rolled back")


class CanaryConfig(CanarySettings):
    """Another version of a member, which answers a share of the images."""

    version: Annotated[int | str, Field(union_mode="left_to_right")] = Field(description="the other version")
    key: str = Field(
        "image",
        pattern=r"^(image|header:[A-Za-z0-9_-]{1,64})$",
        description="images with the same key get the same version: a request's `header:<name>`, or the image",
    )
