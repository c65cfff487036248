"""Builds the Serve application: `import_path: graph.app:build`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.contract.names import INGRESS
from deployments.contract.preprocessing import Preprocessing
from deployments.ingress.single_member import MemberModelInfo
from deployments.observe.tracing import ROOT
from deployments.pipeline.member_client import QuorumSettings
from deployments.serving.ingress_replica import IngressReplica
from deployments.serving.node_replica import REMOVED_S, NodeDeployment
from deployments.serving.spec import IngressSpec
from graph.composition import Compose, build_graph, ensemble
from graph.config import EnsembleConfig, parse
from graph.feature import Wanted, wanted
from graph.placement import Factory, NodeSpec, node_specs, pinning
from graph.signature import EnsembleSignature, resolve_signatures

# Serve looks this often whether a replica is healthy, and replaces one that has been silent three times for so long.
CHECK_EVERY_S, CHECK_TIMEOUT_S = 2.0, 3.0
# Serve kills a stopped replica of a node after this time: the wait for its callers, and 10 s for its last batches.
STOP_S = REMOVED_S + 10


def build(args: dict[str, Any]) -> Application:
    """Bind the nodes into the application that the arguments describe.

    Raises:
        ConfigurationError: a field is wrong, a model can't be served, or the members don't fit together.
    """
    config = parse(args)
    features = wanted(config)
    agreed = resolve_signatures(config)
    return _application(config, agreed, partial(ensemble, agreed.pixels, config.ensemble), features)


def application(
    config: EnsembleConfig, agreed: EnsembleSignature, compose: Compose, quorum: int | None = None
) -> Application:
    """Bind a configuration's nodes behind the ingress, joined by `compose`; for a `build` function of your own.

    The application has the features that work for a graph of any shape. `quorum` members must answer an image; None
    means all members.
    """
    asking = config.model_copy(update={"ensemble": QuorumSettings(quorum=quorum)})
    return _application(asking, agreed, compose, [each for each in wanted(asking) if each.feature.of_any_shape])


def _application(
    config: EnsembleConfig, agreed: EnsembleSignature, compose: Compose, features: Sequence[Wanted]
) -> Application:
    nodes = node_specs(config, agreed)
    infos = {
        member.name: MemberModelInfo(wanted.size, str(agreed.versions[member.name] or 1), member.kind)
        for member in config.members
        if isinstance(wanted := agreed.preprocessing[member.name], Preprocessing)
    }
    ingress = IngressSpec(
        build=partial(build_graph, config, agreed, features, compose, infos),
        settings=config.ingress,
        labels=agreed.labels,
        members=infos,
        services=services(nodes),
        protocols=config.protocols,
        edges=config.edges,
        access=config.access,
        max_image_bytes=config.transformer.max_image_bytes,
        pinning=pinning(config, INGRESS),
    )
    placed = {name: _placed(name, spec, config.edges == "direct") for name, spec in nodes.items()}
    stand_ins = {name: spec.stand_ins for name, spec in nodes.items() if spec.stand_ins is not None}
    return _deployment(IngressReplica, INGRESS).bind(ingress, placed, stand_ins)


def services(nodes: dict[str, NodeSpec]) -> dict[str, str]:
    """Return the service name of each node in a trace, by what the node notes: the name of its deployment."""
    root = os.environ.get("OTEL_SERVICE_NAME") or INGRESS
    return {ROOT: root, **{spec.operation: spec.deployment for spec in nodes.values()}}


def _placed(name: str, spec: NodeSpec, listens: bool) -> Application | Factory:
    if spec.placement == "inline":
        return spec.make
    deployment = _deployment(NodeDeployment, spec.deployment).options(graceful_shutdown_timeout_s=STOP_S)
    return deployment.bind(name, spec.make, listens, spec.pinning)


def _deployment(cls: type, name: str) -> serve.Deployment:
    # More calls than the ingress admits, so that the ingress refuses what is too much, and not Serve.
    decorate = serve.deployment(
        name=name,
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0.1},
        health_check_period_s=CHECK_EVERY_S,
        health_check_timeout_s=CHECK_TIMEOUT_S,
    )
    return decorate(cls)
