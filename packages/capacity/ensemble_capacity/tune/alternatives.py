"""Alternatives to a configuration at a loss of accuracy: other versions, and other thresholds of its cascade."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ensemble_models.check.measure import Together, selections
from ensemble_models.dataset import Dataset, indices
from ensemble_models.ensembles import Members
from ensemble_models.prediction import Candidate, of_configuration, predictions
from ensemble_models.statistics import Interval, paired
from ensemble_models.tune_cascade import bound, check_enough, choose, halves
from graph.config import EnsembleConfig
from graph.signature import EnsembleSignature
from scripts import configuration
from scripts.errors import ScriptError

# The size of the batches whose CPU time is a member's cost.
BATCH = 8
# The version of each member that is not the configured one, by name.
Versions = tuple[tuple[str, int], ...]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Alternative:
    """Versions and thresholds to serve.

    Attributes:
        name: in words.
        versions: that are not the configured ones.
        exit_at: thresholds of the cascade; None for the configured ones.
        exits: of the cascade; see `Scenario.exits`.
        loss: in words: what it costs of top-1.
    """

    name: str
    versions: Versions = ()
    exit_at: tuple[float, ...] | None = None
    exits: tuple[float, ...] | None = None
    loss: str = ""

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make the Serve config that serves it."""
        changed: dict[str, Any] = copy.deepcopy(dict(config))
        arguments, versions = next(configuration.ours(changed))["args"], dict(self.versions)
        for member in arguments["members"]:
            if member["name"] in versions:
                member["version"] = versions[member["name"]]
                # The next version would not have been measured.
                member.pop("version_policy", None)
        if self.exit_at is not None:
            ensemble = arguments["ensemble"]
            ensemble["cascade"]["exit_at"] = list(self.exit_at)
            # The configured thresholds' own.
            ensemble["cascade"].pop("versions", None)
            if (under_load := ensemble.get("under_load")) is not None:
                # None of them may be above the usual ones.
                under_load["exit_at"] = list(map(min, under_load["exit_at"], self.exit_at))
        return changed


AS_CONFIGURED = Alternative("as configured")


def exits_of(stops: Sequence[float]) -> tuple[float, ...]:
    """Turn the shares of all images that end at each member into shares of the images that the member gets."""
    reached = [sum(stops[number:]) for number in range(len(stops))]
    return tuple(stop / left if left else 0.0 for stop, left in list(zip(stops, reached, strict=True))[:-1])


@dataclass(frozen=True)
class Alternatives:
    """Finds the alternatives to a configuration on labelled images.

    Attributes:
        config: of the application.
        agreed: what its members agree on.
        dataset: the images.
        most_lost: points of top-1, against the configuration; None to change no answer.
        costs: the CPU time of an image by each member, of versions that are served.
        log: is told what is tried and what is left out.
    """

    config: EnsembleConfig
    agreed: EnsembleSignature
    dataset: Dataset
    most_lost: float | None
    costs: Callable[[Versions], Mapping[str, float]]
    log: Log = print

    def found(self) -> list[Alternative]:
        """Return the alternatives that lose no more than `most_lost`; the configuration as it is is the first.

        What counts is the one-sided 95 % bound of the loss.

        Raises:
            ScriptError: the images have other classes than the members, or are too few.
        """
        every = of_configuration(self.config, self.agreed)
        if self.most_lost is None:
            every = [each for each in every if each.is_served]
        else:
            check_enough(len(self.dataset), self.most_lost, "images")
        together = Together.of(self.config, self.agreed)
        labels, outputs = indices(self.dataset, self.agreed.labels, "the models"), predictions(every, self.dataset)
        found, reference = list[Alternative](), np.zeros(0)
        for rows in selections(every, list(together.weights)):
            scores = {name: outputs[row] for name, row in rows.items()}
            chosen = [every[row] for row in rows.values()]
            versions = tuple((each.name, each.version or 0) for each in chosen if not each.is_served)
            members = Members(scores, labels, together.weights, dict.fromkeys(rows, 1.0), together.method)
            other, right = self._own(members, replace(AS_CONFIGURED, name=_name(chosen), versions=versions))
            if not found:
                other, reference = replace(other, name=AS_CONFIGURED.name), right
            elif self._allows(other, reference - right):
                other = replace(other, loss=_loss(reference - right))
            else:
                continue
            found += [other, *self._with_thresholds(members, other, reference)]
        if (
            self.most_lost is not None
            and self.config.ensemble.cascade is None
            and all(each.is_served for each in every)
        ):
            self.log("There is no other version of the models and no cascade, so that nothing can be tried at a loss.")
        return found

    def _own(self, members: Members, other: Alternative) -> tuple[Alternative, np.ndarray[Any, np.dtype[np.float64]]]:
        """Add the exits of the configured thresholds; return also whether each image's answer is right."""
        if (cascade := self.config.ensemble.cascade) is None:
            return other, (members.full() == members.labels).astype(np.float64)
        walk = members.walk(cascade.order, cascade.exit_at)
        return replace(other, exits=exits_of(walk.stops)), (walk.answers == members.labels).astype(np.float64)

    def _with_thresholds(self, members: Members, other: Alternative, reference: Any) -> Iterator[Alternative]:
        """Yield the alternative with its cheapest thresholds, which half of the images choose and the others judge."""
        if (cascade := self.config.ensemble.cascade) is None or self.most_lost is None:
            return
        choosing = halves(self.dataset)
        costly = replace(members, costs=self.costs(other.versions))
        try:
            check_enough(int(choosing.sum()), self.most_lost)
            choice = choose(costly.part(choosing), self.most_lost, cascade.order)
        except ScriptError as err:
            self.log(f"{other.name}, other thresholds: {err}")
            return
        if choice.exit_at == cascade.exit_at:
            return
        walk = members.part(~choosing).walk(choice.order, choice.exit_at)
        lost = reference[~choosing] - (walk.answers == members.labels[~choosing])
        thresholds = ", ".join(f"{value:g}" for value in choice.exit_at)
        changed = replace(other, name=f"{other.name}, exit_at {thresholds}", exit_at=choice.exit_at)
        if self._allows(changed, lost):
            yield replace(changed, exits=exits_of(walk.stops), loss=_loss(lost))

    def _allows(self, other: Alternative, lost: Any) -> bool:
        """Tell whether an alternative loses little enough; `lost` is 1 for an answer it spoils, -1 for one it mends."""
        most = bound(lost)
        allowed = self.most_lost is not None and most <= self.most_lost
        verdict = "tried" if allowed else f"left out, because more than {self.most_lost:g} may be lost"
        amount = f"at most {max(0.0, most):.2f} points are lost" if lost.any() else "no answer becomes right or wrong"
        self.log(f"{other.name}: top-1 {_loss(lost)}; {amount}: {verdict}.")
        return allowed


def _name(chosen: Sequence[Candidate]) -> str:
    return ", ".join(f"{each.name} {each.version} ({each.precision})" for each in chosen)


def _loss(lost: Any) -> str:
    difference = Interval.paired(-lost)
    return f"{difference.mean:+.2f} points ({paired(difference)}, {len(lost):,} images)"
