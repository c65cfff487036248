"""Builds the Serve application: `import_path: graph.app:build`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.observe.tracing import ROOT
from graph.agreement import Agreement, agree
from graph.capabilities.cascade.settings import EnsembleSettings
from graph.capabilities.listed import Wanted, wanted
from graph.composition import ensemble
from graph.config import EnsembleConfig, parse
from graph.names import INGRESS, MARK
from graph.placement import Factory, Recipe, recipes
from graph.plan import Compose, Plan
from graph.rules import warnings_of_arguments
from graph.serving.ingress import IngressReplica
from graph.serving.node import NodeDeployment

logger = logging.getLogger("ray.serve")
# Serve looks this often whether a replica is healthy, and replaces one that has been silent three times for so long.
CHECK_EVERY_S, CHECK_TIMEOUT_S = 2.0, 3.0


def build(args: dict[str, Any]) -> Application:
    """Bind the nodes into the application that the arguments describe.

    Raises:
        ConfigurationError: a field is wrong, a model can't be served, or the members don't fit together.
    """
    config = parse(args)
    agreed = agree(config)
    # Where `ensemble serve` runs, its commands have printed them.
    for found in () if MARK in os.environ else warnings_of_arguments(config, len(agreed.labels)):
        logger.warning("%s", found)
    return _application(config, agreed, partial(ensemble, agreed.pixels, config.ensemble), wanted(config))


def application(config: EnsembleConfig, agreed: Agreement, compose: Compose, quorum: int | None = None) -> Application:
    """The nodes of a configuration behind the ingress, joined in another way; for a `build` of one's own.

    It has the capabilities that work however the nodes are joined. `quorum` members must answer, None for all.
    """
    asking = config.model_copy(update={"ensemble": EnsembleSettings(quorum=quorum)})
    return _application(asking, agreed, compose, [each for each in wanted(asking) if each.capability.of_any_shape])


def _application(
    config: EnsembleConfig, agreed: Agreement, compose: Compose, capabilities: Sequence[Wanted]
) -> Application:
    nodes = recipes(config, agreed)
    plan = Plan(config, agreed, compose, capabilities, services(nodes))
    placed = {name: _placed(name, recipe, config.edges == "direct") for name, recipe in nodes.items()}
    stand_ins = {name: recipe.stand_ins for name, recipe in nodes.items() if recipe.stand_ins is not None}
    return _deployment(IngressReplica, INGRESS).bind(plan, placed, stand_ins)


def services(nodes: dict[str, Recipe]) -> dict[str, str]:
    """The service name of each node in a trace, by what the node notes: the name of its deployment."""
    root = os.environ.get("OTEL_SERVICE_NAME") or INGRESS
    return {ROOT: root, **{recipe.operation: recipe.deployment for recipe in nodes.values()}}


def _placed(name: str, recipe: Recipe, listens: bool) -> Application | Factory:
    if recipe.placement == "inline":
        return recipe.make
    return _deployment(NodeDeployment, recipe.deployment).bind(name, recipe.make, listens, recipe.pinning)


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
