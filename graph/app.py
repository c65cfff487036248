"""Builds the Serve application: `import_path: graph.app:build`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.contract.preprocessing import Preprocessing
from deployments.ingress.member import Offer
from deployments.observe.tracing import ROOT
from graph.agreement import Agreement, agree
from graph.capabilities.capability import Planned
from graph.capabilities.listed import of_any_shape, planned
from graph.composition import ensemble
from graph.config import EnsembleConfig, parse
from graph.names import INGRESS
from graph.placement import Factory, Recipe, recipes
from graph.plan import Compose, Plan
from graph.serving.ingress import IngressReplica
from graph.serving.node import NodeDeployment


def build(args: dict[str, Any]) -> Application:
    """Bind the nodes into the application that the arguments describe.

    Raises:
        ConfigurationError: a field is wrong, a model can't be served, or the members don't fit together.
    """
    config = parse(args)
    agreed = agree(config)
    compose = partial(ensemble, agreed.pixels, config.ensemble)
    return application(config, agreed, compose, config.ensemble.quorum, planned(config, agreed))


def application(
    config: EnsembleConfig,
    agreed: Agreement,
    compose: Compose,
    quorum: int | None = None,
    capabilities: Sequence[Planned] | None = None,
) -> Application:
    """The nodes of a configuration, composed in some way behind the ingress; for a `build` of one's own, too.

    Args:
        config: what is served.
        agreed: what its members agree on.
        compose: joins the nodes.
        quorum: how many members must answer; None for all.
        capabilities: what takes part; None for those that do not depend on how the nodes are joined.
    """
    nodes, needed = recipes(config, agreed), quorum or len(config.voters)
    plan = Plan(
        ingress=config.ingress,
        class_count=len(agreed.labels),
        services=services(nodes),
        compose=compose,
        capabilities=of_any_shape(config, agreed, quorum) if capabilities is None else capabilities,
        edges=config.edges,
        keys=config.access.keys,
        page=config.page,
        strategy=strategy(config, needed),
        labels=agreed.labels,
        offers=offers(config, agreed),
    )
    placed = {name: _placed(name, recipe, plan.edges == "direct") for name, recipe in nodes.items()}
    return _deployment(IngressReplica, INGRESS).bind(plan, placed)


def strategy(config: EnsembleConfig, needed: int) -> str:
    """How the members' answers become one, in words."""
    method, count = config.combiner.method.replace("_", " "), len(config.voters)
    return f"{method} of {count} members, of which {needed} must answer"


def offers(config: EnsembleConfig, agreed: Agreement) -> dict[str, Offer]:
    """The members that can be asked by themselves, by name: those that take pixels."""
    return {
        member.name: Offer(wanted.size, str(agreed.versions[member.name] or 1), member.kind)
        for member in config.members
        if isinstance(wanted := agreed.preprocessing[member.name], Preprocessing)
    }


def services(nodes: dict[str, Recipe]) -> dict[str, str]:
    """The service name of each node in a trace, by what it notes: its deployment's."""
    root = os.environ.get("OTEL_SERVICE_NAME") or INGRESS
    return {ROOT: root, **{recipe.operation: recipe.deployment for recipe in nodes.values()}}


def _placed(name: str, recipe: Recipe, listens: bool) -> Application | Factory:
    if recipe.placement == "inline":
        return recipe.make
    return _deployment(NodeDeployment, recipe.deployment).bind(name, recipe.make, listens)


def _deployment(cls: type, name: str) -> serve.Deployment:
    # Room for more calls than the ingress admits, so that its refusals are answered and not Serve's.
    decorate = serve.deployment(name=name, max_ongoing_requests=100_000, ray_actor_options={"num_cpus": 0.1})
    return decorate(cls)
