"""The section `feedback`."""

from __future__ import annotations

from pydantic import Field

from deployments.contract.settings import Schema


class FeedbackSettings(Schema):
    """How many answers are remembered, and for how long. Of an image that is its classes, never itself."""

    max_requests: int = Field(10_000, ge=1, le=10_000_000, description="answers; each image of a request is one")
    ttl_s: float = Field(3600.0, gt=0, le=2_592_000, allow_inf_nan=False, description="how long one is kept")
