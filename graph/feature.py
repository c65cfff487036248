"""A feature: what an application can do besides classifying, in a folder of its own.

Where the application is built (`graph.app`), it is asked whether the configuration wants it. It is made in each process
of the ingress, where it takes part by the attributes and methods below. Each does nothing unless it is overridden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from deployments.contract.errors import ConfigurationError, EnsembleError
from deployments.contract.nodes import Node
from deployments.contract.sections import Section, SectionOwner
from deployments.entry_points import FEATURES, find_class, names
from deployments.ingress.protocol import Serves
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Interceptor
from deployments.serving.spec import Nodes
from ensemble_serving.answer import Version
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


@dataclass(frozen=True)
class Site:
    """The process of the ingress that a feature is made in; the features share the last three.

    Attributes:
        application: the Serve application's name.
        replica: the unique id of this replica of the ingress.
        nodes: every node by name, as wrapped by the features before.
        settings: its entry in `features`; None if it has none.
        versions: by name, the version that each member serves; a feature that changes one notes it here.
        pinned: by name, the version that a member must answer by from now on; predictions of others are stale.
        left_out: by name, why each member that is left out is not called.
    """

    application: str = ""
    replica: str = ""
    nodes: Nodes = field(default_factory=dict)
    settings: Section | None = None
    versions: dict[str, str] = field(default_factory=dict)
    pinned: dict[str, Version] = field(default_factory=dict)
    left_out: dict[str, EnsembleError] = field(default_factory=dict)


class Stage(NamedTuple):
    """A stage of the graph that features wrap, one after the other.

    Attributes:
        kind: `node`, whoever calls it; `member`, as the ensemble calls it; `asker`, which calls the members: pixels by
            preprocessing to predictions; `predictions`: encoded images to each member's predictions.
        name: of the node or member.
        members: the members that an asker calls, by name.
        combiner: combines their predictions.
    """

    kind: Literal["node", "member", "asker", "predictions"]
    name: str = ""
    members: Mapping[str, Member] = {}
    combiner: Node[Any, Any] | None = None


class Feature(SectionOwner, Serves):
    """Takes part in an application where its sections are set.

    Attributes:
        order: its place: a feature of a lower order is made first, sees an image first, and wraps inside.
        always: whether it takes part in every application.
        of_any_shape: whether it works however the nodes are joined.
        interceptor: sees batches before and after the graph; None for nothing.
    """

    order = 100
    always = False
    of_any_shape = False
    interceptor: Interceptor | None = None

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        """Set the configuration, what the members agree on, and the process that this is made in."""

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Return what replaces the node of a stage."""
        return node


class Wanted(NamedTuple):
    """A feature that takes part, and its entry in `features`; None if it is not named there."""

    feature: type[Feature]
    settings: Section | None


def wanted(config: EnsembleConfig) -> list[Wanted]:
    """List the features of an application, in the order in which they are made and see what comes in.

    Raises:
        ConfigurationError: `features` names no feature, or a feature without its section; or an installed one can't be
            imported.
    """
    named = {_found(name): settings for name, settings in config.features.items()}
    present = {type(each.section) for each in config.owned}
    for name, feature in zip(config.features, named, strict=True):
        if feature.sections and not _takes_part(feature, present):
            fields = " or ".join(f"`{_place(each)}`" for each in feature.sections)
            raise ConfigurationError(
                f"features.{name}: it takes part by {fields}, which the arguments lack; set that, or remove the entry"
            )
    installed = {feature for feature in map(_found, names(FEATURES)) if _takes_part(feature, present)}
    every = dict.fromkeys([*named, *sorted(installed, key=lambda each: each.__qualname__)])
    return sorted((Wanted(each, named.get(each)) for each in every), key=lambda each: each.feature.order)


def _takes_part(feature: type[Feature], present: set[type[Section]]) -> bool:
    return feature.always or not present.isdisjoint(feature.sections)


def _place(section: type[Section]) -> str:
    """Return the path of a section's first field."""
    every = ".*" if section.at == "members" else ""
    return f"{section.at}{every}.{next(iter(section.model_fields))}"


def _found(name: str) -> type[Feature]:
    try:
        found: type[Feature] = find_class(FEATURES, name, Feature)
    except ValueError as err:
        raise ConfigurationError(f"features: {err}") from err
    return found
