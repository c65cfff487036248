"""Chooses the variant of a version that a member serves: float, int8, or the fastest on this CPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from deployments.repository.errors import ModelError
from deployments.repository.repository import Model

Precision = Literal["fastest", "float", "int8"]
# Measures the CPU time of models, milliseconds per image.
Costs = Callable[[Sequence[Model]], Sequence[float]]


class Choice(NamedTuple):
    """A variant that was chosen.

    Attributes:
        costs: CPU time by version, milliseconds per image; empty if there was nothing to compare.
    """

    model: Model
    costs: Mapping[int, float] = {}

    def __str__(self) -> str:
        """Say which variant is served, and what each costs."""
        took = ", ".join(f"version {version} takes {cost:.1f} ms" for version, cost in self.costs.items())
        served = f"version {self.model.version} ({kind(self.model)})"
        return f"{served}; of CPU time per image here, {took}" if took else served


def kind(model: Model) -> Literal["float", "int8"]:
    """Return the kind of a version's numbers, by its `metadata.json`."""
    return "int8" if model.metadata.get("precision") == "INT8" else "float"


def choose(variants: Sequence[Model], wanted: Precision, costs: Costs) -> Choice:
    """Choose among the variants of a version, in ascending order; the newest of a kind stands for its kind.

    Only int8 variants whose accuracy was measured compete for the fastest.

    Raises:
        ModelError: no variant has the wanted precision.
    """
    newest = {kind(model): model for model in variants}
    if wanted != "fastest":
        if wanted in newest:
            return Choice(newest[wanted])
        source = variants[0]
        how = f"; `ensemble quantize {source.name} --version {source.version} --data IMAGES` makes one"
        raise ModelError(
            f"precision: {wanted}: version {source.version} of {source.name!r} has no such variant"
            f"{how if wanted == 'int8' else ''}"
        )
    known = [model for name, model in newest.items() if name == "float" or "accuracy" in model.metadata]
    known = known or list(newest.values())
    if len(known) == 1:
        return Choice(known[0])
    took = {model.version: cost for model, cost in zip(known, costs(known), strict=True)}
    return Choice(min(known, key=lambda model: took[model.version]), took)
