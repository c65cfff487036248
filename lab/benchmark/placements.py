"""Changes a Serve config: places its nodes elsewhere, and fixes the number of replicas."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from scripts import configuration

Placement = Literal["inline", "separate"]
NODES = {TRANSFORMER: "transformer", COMBINER: "combiner", LABELER: "labeler"}
# What a replica may hold is the ingress' to bound; Serve's bounds are out of the way.
MOST_CALLS = 1000
# Of a core, per replica: a reservation, and no limit.
RESERVED = 0.05
# What a deployment has for another number of replicas, or for several machines.
DROPPED = {"autoscaling_config", "num_replicas", "max_replicas_per_node"}


def placed(config: Mapping[str, Any], placement: Placement, ingresses: int = 1, nodes: int = 1) -> dict[str, Any]:
    """Place every node of the config's application alike, with a fixed number of replicas.

    Args:
        config: a Serve config.
        placement: of every node.
        ingresses: replicas of the ingress.
        nodes: replicas of each separate member and of the transformer; the light nodes have one.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    application = next(configuration.ours(changed))
    arguments = application["args"]
    for section in NODES.values():
        arguments[section] = {**(arguments.get(section) or {}), "placement": placement}
    for member in arguments["members"]:
        member["placement"] = placement
    before = {entry["name"]: entry for entry in application.get("deployments") or []}
    application["deployments"] = [_fixed(INGRESS, before, ingresses)]
    if placement == "separate":
        members = [member.get("deployment") or member["name"] for member in arguments["members"]]
        counts = {TRANSFORMER: nodes, **dict.fromkeys(members, nodes), COMBINER: 1, LABELER: 1}
        application["deployments"] += [_fixed(name, before, count) for name, count in counts.items()]
    return changed


def _fixed(name: str, before: Mapping[str, Mapping[str, Any]], replicas: int) -> dict[str, Any]:
    """Make a deployment's entry of so many replicas, with its other options; any machine must have room for them."""
    kept = {key: value for key, value in before.get(name, {}).items() if key not in DROPPED}
    options = {**kept.pop("ray_actor_options", {}), "num_cpus": RESERVED}
    return {
        "name": name,
        "max_ongoing_requests": MOST_CALLS,
        **kept,
        "ray_actor_options": options,
        "num_replicas": replicas,
    }
