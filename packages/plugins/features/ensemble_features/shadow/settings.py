"""The settings of a shadow, by which another model is tried on live requests."""

from __future__ import annotations

from pydantic import Field

from deployments.contract.settings import Schema


class ShadowSettings(Schema):
    """How many images a shadow gets a copy of."""

    share: float = Field(ge=0, le=1, description="share of the images that it gets")
    max_queue_ms: float = Field(
        100.0, ge=0, le=60_000, description="a batch in which an image has waited longer is not copied, ms"
    )
