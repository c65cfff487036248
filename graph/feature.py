"""A feature: what an application can do besides classifying, in a folder of its own.

Where the application is built (`graph.app`), it is asked whether the configuration wants it. It is made in each process
of the ingress, where it takes part by the attributes and methods below. Each does nothing unless it is overridden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.settings import Schema, describe
from deployments.entry_points import FEATURES, find_class, names
from deployments.ingress.protocol import Extension
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Interceptor
from deployments.serving.spec import Nodes
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

NO_NODES: Nodes = {}


@dataclass(frozen=True)
class Site:
    """The process of the ingress that a feature is made in.

    Attributes:
        application: the Serve application's name.
        replica: the unique id of this replica of the ingress.
        nodes: every node by name, as wrapped by the features before.
        versions: by name, the version that each member serves; a feature that changes one notes it here.
        loaded: by name, the version that an operator loaded; features share it.
        settings: its entry in `features`, an instance of its `Settings`; None if it has none.
    """

    application: str
    replica: str
    nodes: Nodes
    versions: dict[str, str]
    loaded: dict[str, int]
    settings: Schema | None = None


class Feature(Extension):
    """Takes part in an application.

    Attributes:
        order: its place among the others: features of a lower order are made first, and see an image first.
        Settings: the schema of its entry in `features`, for a feature that another package brings.
        section: the part of the configuration without which it can't take part; empty for none.
        of_any_shape: whether it works however the nodes are joined.
        nodes: what replaces nodes, by name, whoever calls them.
        members: what replaces members, by name, where the ensemble calls them.
        keeps_predictions: whether it needs what each member predicts, and not only their combination.
        interceptor: sees batches before and after the graph; None for nothing.
    """

    order = 100
    Settings: type[Schema] = Schema
    section = ""
    of_any_shape = False
    nodes: Nodes = NO_NODES
    members: Nodes = NO_NODES
    keeps_predictions = False
    interceptor: Interceptor | None = None

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        """Set the configuration, what the members agree on, and the process that this is made in."""

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Tell whether a configuration wants the feature without naming it in `features`.

        Raises:
            ConfigurationError: it can't do what the configuration wants.
        """
        return False

    @classmethod
    def decides(cls, config: EnsembleConfig) -> Any:
        """Return the part of a configuration by which this changes predictions; it enters the keys of a cache.

        It is data that JSON can hold; None for nothing.
        """
        return None

    @classmethod
    def describe(cls, config: EnsembleConfig) -> str:
        """Describe in words, for the page, how this changes the way from members to answers; empty for not at all."""
        return ""

    def asker(self, members: Mapping[str, Member], combiner: Node[Any, Any], combined: bool) -> Node[Any, Any] | None:
        """Make a node that asks the members in another way than all side by side; None for no other way.

        It returns their `combined` predictions, or each member's predictions.
        """
        return None

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """Replace the node that asks the members: pixels by preprocessing to predictions."""
        return asker

    def around_predictions(self, predicts: Node[Any, Any]) -> Node[Any, Any]:
        """Replace transformer and members, if this keeps predictions: images to each member's predictions."""
        return predicts

    def knows(self, image: bytes, item: Item) -> bool:
        """Tell whether this process' memory has an image's answer, so that the image need not wait for others."""
        return False


class Wanted(NamedTuple):
    """A feature that takes part, and its settings in `features`; None if it is not named there."""

    feature: type[Feature]
    settings: Schema | None


def wanted(config: EnsembleConfig) -> list[Wanted]:
    """List the features of an application, in the order in which they are made and see what comes in.

    Raises:
        ConfigurationError: `features` names no feature, or a feature without its section, or has a wrong field; an
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
