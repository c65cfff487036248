"""The section of a cascade, in `ensemble`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from deployments.combiner import VOTES
from deployments.contract.sections import Fault, Section, Way
from deployments.contract.settings import Name, Schema
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.exit_at) != len(self.order) - 1:
            raise ValueError(
                f"exit_at needs {len(self.order) - 1} thresholds, one for each member but the last; "
                f"it has {len(self.exit_at)}"
            )
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


class CascadeSection(Section):
    """The fields of `ensemble`."""

    at: ClassVar[str] = "ensemble"

    cascade: CascadeSettings | None = Field(
        None, description="calls members one after the other; default: all side by side"
    )
    under_load: UnderLoadSettings | None = Field(None, description="a cheaper cascade while images wait long")

    @model_validator(mode="after")
    def _loads_a_cascade(self) -> Self:
        if self.under_load is None:
            return self
        if self.cascade is None:
            raise ValueError("under_load lowers a cascade's thresholds; configure ensemble.cascade, too")
        usual, lower = self.cascade.exit_at, self.under_load.exit_at
        if len(usual) != len(lower) or any(low > high for low, high in zip(lower, usual, strict=True)):
            raise ValueError(
                f"under_load.exit_at needs {len(usual)} thresholds, none above the cascade's: {list(usual)}"
            )
        return self

    def way(self, config: EnsembleConfig) -> Way | None:
        """Describe the order of the members, when an image exits, and by which combination."""
        if self.cascade is None:
            return None
        first, *others = self.cascade.order
        turns = (f"then {name} below {below}" for name, below in zip(others, self.cascade.exit_at, strict=True))
        return Way(f"cascade: {', '.join((first, *turns))}", in_turn=True)

    def rules(self, owner: object, config: EnsembleConfig, agreed: EnsembleSignature | None) -> Iterator[Fault]:
        """Find an order that does not fit the members, and thresholds that were chosen for other versions."""
        if self.cascade is None:
            return
        weights = {member.name: 0.0 for member in config.voters} | (config.combiner.weights or config.weights)
        yield from _misfits(self.cascade, weights, config.combiner.method)
        if agreed is not None:
            yield from _stale(self.cascade, weights, config, agreed)


def _misfits(cascade: CascadeSettings, weights: dict[str, float], method: str) -> Iterator[Fault]:
    order = cascade.order
    if sorted(order) != sorted(weights):
        yield Fault("cascade.order must name each member once", f"the members are {sorted(weights)}", is_refused=True)
        return
    if method == VOTES:
        yield Fault("cascade: combiner.method: votes don't tell how sure the members are", "take another method", True)
    first = next(place for place, name in enumerate(order) if weights[name])
    for late in (name for name in order[first:] if not weights[name]):
        yield Fault(
            f"cascade.order: {late!r} has weight 0, and no say beside {order[first]!r}, which is called before it",
            "put it first, or give it a weight",
            is_refused=True,
        )


def _stale(
    cascade: CascadeSettings, weights: dict[str, float], config: EnsembleConfig, agreed: EnsembleSignature
) -> Iterator[Fault]:
    """Find thresholds that were chosen for other versions, and name the command that chooses anew."""
    stale = [
        f"{name} {chosen}, and version {served} is served"
        for name, chosen in cascade.versions.items()
        # None where another server does not report one.
        if (served := agreed.versions[name]) is not None and str(served) != str(chosen)
    ]
    if stale:
        gates = [name for name in cascade.order if not weights[name]]
        flags = f" --gates {' '.join(gates)}" if gates else ""
        yield Fault(
            f"cascade: the thresholds were chosen for {', '.join(stale)}: other images exit than intended",
            f"`ensemble tune-cascade --data IMAGES --order {' '.join(cascade.order)}{flags} --repository "
            f"{config.model_repository}` chooses them anew",
        )
