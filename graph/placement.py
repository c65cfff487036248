"""The nodes of an application and where each runs: in its caller's process, or in a Serve deployment of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from deployments import combiner, labeler
from deployments.contract.member import Agreed
from deployments.contract.nodes import Node
from deployments.contract.settings import Placement
from deployments.transformer import transformer
from graph.agreement import Agreement
from graph.config import EnsembleConfig
from graph.names import COMBINER, LABELER, TRANSFORMER

# Makes a node; called in the process where it is to run.
Factory = Callable[[], Node[Any, Any]]


@dataclass(frozen=True)
class Recipe:
    """A node of the application.

    Attributes:
        deployment: its Serve deployment's name, and its service's in a trace.
        operation: what a trace calls its work.
        placement: where it runs.
        make: makes it there.
    """

    deployment: str
    operation: str
    placement: Placement
    make: Factory


def recipes(config: EnsembleConfig, agreed: Agreement) -> dict[str, Recipe]:
    """Every node of the application by its name, which `user_config` and the graph's composition know it by."""
    members = {
        member.name: Recipe(
            member.deployment_name,
            member.operation,
            member.placement,
            partial(
                member.make,
                config.model_repository,
                Agreed(agreed.preprocessing[member.name], agreed.labels),
                config.ingress.max_batch_size,
            ),
        )
        for member in config.nodes
    }
    return {
        TRANSFORMER: Recipe(
            TRANSFORMER,
            transformer.OPERATION,
            config.transformer.placement,
            partial(
                transformer.JpegTransformer,
                transformer.TransformerSettings.part_of(config.transformer),
                agreed.wanted,
                config.transformer.threads,
                config.transformer.isolate,
            ),
        ),
        **members,
        COMBINER: Recipe(
            COMBINER,
            combiner.OPERATION,
            config.combiner.placement,
            partial(
                combiner.Combiner,
                combiner.CombinerSettings.part_of(config.combiner),
                config.weights,
                graded=config.ensemble.cascade is not None,
            ),
        ),
        LABELER: Recipe(
            LABELER,
            labeler.OPERATION,
            config.labeler.placement,
            partial(labeler.Labeler, labeler.LabelerSettings.part_of(config.labeler), agreed.labels),
        ),
    }
