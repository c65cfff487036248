"""Checks the `user_config` of a Serve config before there is a node that has the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.combiner import CombinerSettings
from deployments.contract.errors import ConfigurationError
from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.settings import Schema, changed, flat
from deployments.labeler import LabelerSettings
from deployments.members.local import LocalMember
from deployments.members.versioned import VersionSettings
from deployments.transformer.transformer import TransformerSettings
from graph.schema import EnsembleConfig


def check_user_config(application: Mapping[str, Any], config: EnsembleConfig) -> None:
    """Raise ConfigurationError for a `user_config` that a replica would refuse by its fields alone."""
    nodes, deployments = _nodes(config), {member.deployment_name: member.name for member in config.nodes}
    for entry in application.get("deployments") or []:
        name, change = str(entry.get("name")), entry.get("user_config") or {}
        try:
            if not isinstance(change, Mapping):
                raise ConfigurationError("a mapping of field to value is needed")
            if name == INGRESS:
                _check_ingress(change, config, nodes)
            elif change:
                node = deployments.get(name, name)
                changed(node, change, {node: nodes[node]} if node in nodes else {})
        except ConfigurationError as err:
            raise ConfigurationError(f"deployments: {name!r}: user_config: {err}") from err


def _check_ingress(change: Mapping[str, Any], config: EnsembleConfig, nodes: Mapping[str, Schema]) -> None:
    sections = {"nodes": _inline(config, nodes), **_of_features(config)}
    # A section of one node is its settings, and of several their settings by name.
    groups = [name for name, section in sections.items() if isinstance(section, Mapping)]
    own = {name: fields for name, fields in change.items() if name not in sections}
    changes = {name: fields for name, fields in change.items() if name in sections}
    initial = {INGRESS: config.ingress, **flat(sections, groups)}
    for name, fields in flat({INGRESS: own, **changes}, groups).items():
        changed(name, fields, initial)


def _inline(config: EnsembleConfig, nodes: Mapping[str, Schema]) -> dict[str, Schema]:
    placed = {member.name: member.placement for member in config.nodes}
    placed |= {name: config.placements[name] for name in (TRANSFORMER, COMBINER, LABELER)}
    return {name: settings for name, settings in nodes.items() if placed[name] == "inline"}


def _of_features(config: EnsembleConfig) -> dict[str, Schema | dict[str, Schema]]:
    """Return the initial settings of the sections of features, by section, or by section and name."""
    found: dict[str, Any] = {}
    for _, owner, section in config.owned:
        for name, settings in section.live(owner).items():
            found[name] = {**found.get(name, {}), **settings} if isinstance(settings, Mapping) else settings
    return found


def _nodes(config: EnsembleConfig) -> dict[str, Schema]:
    """Return the settings of each node that has any, by the node's name."""
    return {
        TRANSFORMER: TransformerSettings.part_of(config.transformer),
        COMBINER: CombinerSettings.part_of(config.combiner),
        LABELER: LabelerSettings.part_of(config.labeler),
        **{member.name: VersionSettings() for member in config.nodes if isinstance(member, LocalMember)},
    }
