"""The section `feedback`."""

from __future__ import annotations

from pydantic import Field

from deployments.contract.settings import Schema


class FeedbackSettings(Schema):
    """How many predictions are kept, and for how long. Images are not kept."""

    max_requests: int = Field(
        10_000, ge=1, le=10_000_000, description="images whose predictions are kept; API keys share them"
    )
    ttl_s: float = Field(3600.0, gt=0, le=2_592_000, allow_inf_nan=False, description="how long they are kept, seconds")
