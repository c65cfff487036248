"""Checks the `user_config` of a Serve config before there is a node that has the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.combiner import CombinerSettings
from deployments.contract.errors import ConfigurationError
from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.rollout import CanarySettings, ShadowSettings
from deployments.contract.settings import Schema, changed, flat
from deployments.labeler import LabelerSettings
from deployments.members.local import LocalMember
from deployments.members.versioned import VersionSettings
from deployments.transformer.transformer import TransformerSettings
from graph.schema import EnsembleConfig
from graph.sections import LoadingSettings


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
    placed = {member.name: member.placement for member in config.nodes}
    placed |= {name: config.placements[name] for name in (TRANSFORMER, COMBINER, LABELER)}
    canaries = {each.name: CanarySettings.part_of(each.canary) for each in config.members if each.canary is not None}
    sections: dict[str, Any] = {"nodes": {name: each for name, each in nodes.items() if placed[name] == "inline"}}
    sections |= {"canaries": canaries} if canaries else {}
    shadows = {name: ShadowSettings(share=shadow.share or 0.0) for name, shadow in config.shadows.items()}
    sections |= {"shadows": shadows} if shadows else {}
    sections |= {"loading": LoadingSettings()} if config.access.operators else {}
    # `loading` is a section of its own, and the others are of several nodes.
    groups = [name for name, each in sections.items() if isinstance(each, Mapping)]
    initial = {INGRESS: config.ingress, **flat(sections, groups)}
    # The ingress itself takes no mapping: it is a section of a feature, which checks it where it is made.
    own = {
        name: each
        for name, each in change.items()
        if name not in sections and not (config.features and isinstance(each, Mapping))
    }
    of_sections = {name: each for name, each in change.items() if name in sections}
    for name, each in flat({INGRESS: own, **of_sections}, groups).items():
        changed(name, each, initial)


def _nodes(config: EnsembleConfig) -> dict[str, Schema]:
    """Return the settings of each node that has any, by the node's name."""
    return {
        TRANSFORMER: TransformerSettings.part_of(config.transformer),
        COMBINER: CombinerSettings.part_of(config.combiner),
        LABELER: LabelerSettings.part_of(config.labeler),
        **{member.name: VersionSettings() for member in config.nodes if isinstance(member, LocalMember)},
    }
