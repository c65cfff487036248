"""The section of a cascade, in `ensemble`: its fields and their rules."""

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field, model_validator

from deployments.combiner import VOTES
from deployments.contract.sections import Fault, Section, Way
from ensemble_features.cascade.settings import CascadeSettings, UnderLoadSettings
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


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
        rungs = (f"; loss {rung.loss:g} below {list(rung.exit_at)}" for rung in self.cascade.ladder)
        return Way(f"cascade: {', '.join((first, *turns))}{''.join(rungs)}", in_turn=True)

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
