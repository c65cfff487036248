"""Builds the Serve application: `import_path: graph.app:build`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.contract.member import Agreed
from deployments.contract.nodes import Graph
from deployments.contract.preprocessing import Preprocessing
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.member import Offer
from deployments.members.openvino import OpenVino
from deployments.observe.tracing import ROOT
from graph.agreement import Agreement, agree
from graph.config import EnsembleConfig, parse
from graph.identity import identity
from graph.placement import Factory, Recipe, recipes
from graph.plan import INGRESS, Loadable, Nodes, Plan, Remembering, Trying, Whole, ensemble
from graph.serving.door import Door
from graph.serving.node import NodeDeployment


def build(args: dict[str, Any]) -> Application:
    """Bind the nodes into the application that the arguments describe.

    Raises:
        ConfigurationError: a field is wrong, a model can't be served, or the members don't fit together.
    """
    config = parse(args)
    agreed = agree(config)
    remembering = None
    if config.cache is not None:
        # Made once here, too: what is wrong with it is told before anything starts.
        config.cache.store()
        remembering = Remembering(config.cache, identity(config, agreed), len(agreed.labels))
    compose = partial(ensemble, agreed.pixels, config.ensemble, remembering, trying=trying(config, agreed))
    return application(config, agreed, compose, config.ensemble.quorum)


def application(
    config: EnsembleConfig,
    agreed: Agreement,
    compose: Callable[[Nodes], Graph | Whole],
    quorum: int | None = None,
) -> Application:
    """The nodes of a configuration, composed in some way behind the door; for a `build` of one's own, too.

    Args:
        config: what is served.
        agreed: what its members agree on.
        compose: joins the nodes.
        quorum: how many members must answer; None for all.
    """
    nodes, needed = recipes(config, agreed), quorum or len(config.voters)
    plan = Plan(
        config.ingress,
        len(agreed.labels),
        services(nodes),
        compose,
        config.edges,
        config.access.keys,
        config.page,
        strategy(config, needed),
        agreed.labels,
        offers(config, agreed),
        loadable(config, agreed, needed),
    )
    placed = {name: _placed(name, recipe, plan.edges == "direct") for name, recipe in nodes.items()}
    return _deployment(Door, INGRESS).bind(plan, placed)


def trying(config: EnsembleConfig, agreed: Agreement) -> Trying:
    """What is tried beside what is served."""
    return Trying(
        {member.name: member.canary for member in config.members if member.canary is not None},
        {
            name: (ShadowSettings(share=member.share), agreed.preprocessing[name].key, config.replaced(member))
            for name, member in config.shadows.items()
            if member.share is not None
        },
        config.feedback,
        agreed.labels,
    )


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


def loadable(config: EnsembleConfig, agreed: Agreement, needed: int) -> Loadable | None:
    """The members that can be loaded and unloaded; None if nobody may."""
    if not config.access.operators:
        return None
    members = {
        member.name: (member, Agreed(agreed.preprocessing[member.name], agreed.labels))
        for member in config.voters
        # What is tried beside a member is compared with the version that it began with.
        if isinstance(member, OpenVino) and member.canary is None
    }
    return Loadable(config.access.operators, members, len(config.voters) - needed, config.model_repository)


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
