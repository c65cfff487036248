"""The settings of a cascade."""

from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from deployments.contract.settings import Name, Schema

Sureness = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class AuditSettings(Schema):
    """Early exits that are also sent to the other members, in the background."""

    share: float = Field(gt=0, le=1, description="share of the early exits that is audited")
    at_most: float | None = Field(
        None, gt=0, lt=1, description="bound of the share of exits that all members would answer differently"
    )
    tighten: bool = Field(False, description="raise thresholds while the share is above `at_most`")

    @model_validator(mode="before")
    @classmethod
    def _of_a_number(cls, given: Any) -> Any:
        return {"share": given} if isinstance(given, int | float) else given

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.tighten and self.at_most is None:
            raise ValueError("tighten needs at_most, the share of the exits that may be answered differently")
        return self


class RungSettings(Schema):
    """Thresholds for requests with a `tolerance`; `ensemble tune-cascade` writes them."""

    exit_at: tuple[Sureness, ...] = Field(description="the threshold of each member but the last")
    loss: float = Field(ge=0, le=100, description="bound of the top-1 lost against all members, points")
    differs: float = Field(ge=0, le=1, description="bound of the share of images that all members answer differently")
    cost: float = Field(gt=0, le=1, description="mean inference cost divided by the cost of all members")


class CascadeSettings(Schema):
    """Members are called one after the other, until the called members are sure together."""

    order: tuple[Name, ...] = Field(
        min_length=2, max_length=64, description="every member, in the order in which they are called"
    )
    exit_at: tuple[Sureness, ...] = Field(
        description="for each member but the last, the combined probability from which on an image exits"
    )
    versions: dict[Name, int] = Field(
        {}, description="versions of the models that `exit_at` was chosen for; a warning says if others are served"
    )
    audit: AuditSettings | None = Field(
        None, description="share of the early exits to audit, or its fields; default: none"
    )
    ladder: tuple[RungSettings, ...] = Field(
        (), max_length=64, description="thresholds for requests with a `tolerance`, from the safest to the cheapest"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.exit_at) != len(self.order) - 1:
            raise ValueError(
                f"exit_at needs {len(self.order) - 1} thresholds, one for each member but the last; "
                f"it has {len(self.exit_at)}"
            )
        if any(len(rung.exit_at) != len(self.exit_at) for rung in self.ladder):
            raise ValueError(f"ladder: each rung's exit_at needs {len(self.exit_at)} thresholds, as the cascade's")
        if any(low.loss > high.loss or low.cost <= high.cost for low, high in pairwise(self.ladder)):
            raise ValueError("ladder: the rungs go from the safest to the cheapest: loss must not fall, and cost must")
        if unknown := sorted(set(self.versions) - set(self.order)):
            raise ValueError(f"versions: {unknown[0]!r} is not in the order")
        return self


class UnderLoadSettings(Schema):
    """Lower thresholds of the cascade while images wait long."""

    exit_at: tuple[Sureness, ...] = Field(
        description="thresholds for each member but the last; at 0 every image exits there"
    )
    from_queue_ms: float = Field(
        100.0,
        gt=0,
        le=60_000,
        description="wait of an image for its batch at which these thresholds come into force, ms",
    )
    until_queue_ms: float = Field(
        20.0, ge=0, le=60_000, description="longest wait in a batch at which the usual thresholds return, ms"
    )
    full_share: float = Field(
        0.1, ge=0, le=1, description="share of the images that `quality=full` may exempt meanwhile"
    )

    @model_validator(mode="after")
    def _has_a_gap(self) -> Self:
        if self.until_queue_ms >= self.from_queue_ms:
            raise ValueError("until_queue_ms must be below from_queue_ms, or thresholds would change with every batch")
        return self
