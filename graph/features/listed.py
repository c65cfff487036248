"""The features of an application: what its configuration wants of the installed ones, and those that it names."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from deployments.contract.errors import ConfigurationError
from deployments.contract.settings import Schema, describe
from deployments.doors import FEATURES, find_class, names
from graph.features.feature import Feature
from graph.schema import EnsembleConfig


class Wanted(NamedTuple):
    """A feature that takes part, and its settings in `features`; None if it is not named there."""

    feature: type[Feature]
    settings: Schema | None


def wanted(config: EnsembleConfig) -> list[Wanted]:
    """List the features of an application, in the order in which they are made and see what comes in.

    Raises:
        ConfigurationError: `features` names what is no feature, or one without its section, or has a wrong field; an
            installed one can't be imported; or one refuses.
    """
    named = [_named(name, given, config) for name, given in config.features.items()]
    found = {each.feature for each in named}
    installed = map(_found, names(FEATURES))
    others = [Wanted(each, None) for each in installed if each not in found and each.wanted(config)]
    return sorted([*named, *others], key=lambda each: each.feature.order)


def _named(name: str, given: object, config: EnsembleConfig) -> Wanted:
    feature = _found(name)
    if feature.section and not feature.wanted(config):
        raise ConfigurationError(
            f"features.{name}: it takes part by `{feature.section}`, which the arguments lack; set that, or remove "
            "the entry"
        )
    try:
        return Wanted(feature, feature.Settings.model_validate(given or {}))
    except ValidationError as err:
        raise ConfigurationError(f"features.{name}: {describe(err)}") from err


def _found(name: str) -> type[Feature]:
    try:
        found: type[Feature] = find_class(FEATURES, name, Feature)
    except ValueError as err:
        raise ConfigurationError(f"features: {err}") from err
    return found
