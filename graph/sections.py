"""The sections of `user_config`: the settings that a change is checked against, without the nodes that have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from deployments.combiner import CombinerSettings
from deployments.contract.errors import ConfigurationError
from deployments.contract.rollout import CanarySettings, ShadowSettings
from deployments.contract.settings import Schema, describe
from deployments.labeler import LabelerSettings
from deployments.members.local import LocalMember
from deployments.members.versioned import VersionSettings
from deployments.transformer.transformer import TransformerSettings
from graph.capabilities.loading.settings import LoadingSettings
from graph.names import COMBINER, INGRESS, LABELER, TRANSFORMER

if TYPE_CHECKING:
    from graph.config import EnsembleConfig


def flat(sections: Mapping[str, Any], groups: Collection[str]) -> dict[str, Any]:
    """The sections, or their changes, by name; each part of a group is named `group.part`."""
    found: dict[str, Any] = {}
    for name, section in sections.items():
        is_group = name in groups and isinstance(section, Mapping)
        found |= {f"{name}.{each}": value for each, value in section.items()} if is_group else {name: section}
    return found


def changed(name: str, change: Any, initial: Mapping[str, Schema]) -> Schema:
    """The settings of a section with a change; raises ConfigurationError if there are none, or the change is wrong."""
    if name not in initial:
        raise ConfigurationError(f"{name} takes no user_config; those that do: {sorted(initial)}")
    try:
        return type(initial[name]).model_validate({**initial[name].model_dump(), **change})
    except (ValidationError, TypeError) as err:
        detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
        raise ConfigurationError(f"{name}: {detail}") from err


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
    initial = {INGRESS: config.ingress, **flat(sections, sections)}
    own = {name: each for name, each in change.items() if name not in sections}
    of_sections = {name: each for name, each in change.items() if name in sections}
    for name, each in flat({INGRESS: own, **of_sections}, sections).items():
        changed(name, each, initial)


def _nodes(config: EnsembleConfig) -> dict[str, Schema]:
    """The settings of each node that has any, by the node's name."""
    return {
        TRANSFORMER: TransformerSettings.part_of(config.transformer),
        COMBINER: CombinerSettings.part_of(config.combiner),
        LABELER: LabelerSettings.part_of(config.labeler),
        **{member.name: VersionSettings() for member in config.nodes if isinstance(member, LocalMember)},
    }
