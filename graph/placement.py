"""The nodes of an application, and where each runs: in its caller's process, or in a Serve deployment of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from deployments import combiner, labeler
from deployments.contract.member import MemberConfig
from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Node
from deployments.contract.settings import Placement
from deployments.cpus import Pinning
from deployments.transformer import transformer
from graph.defaults import fixed, make, pinning, sharing
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# Makes a node; called in the process where it is to run.
Factory = Callable[[], Node[Any, Any]]


@dataclass(frozen=True)
class NodeSpec:
    """A node of the application.

    Attributes:
        deployment: the name of its Serve deployment, and of its service in a trace.
        operation: the name of its work in a trace.
        placement: where it runs.
        make: makes it there.
        pinning: the CPUs of a separate node; None for all.
        stand_ins: make the node in the ingress, for as long as no replica of a separate one answers: as usual, and for
            images that may have ended a replica. None for a node that takes too much memory or time for that.
    """

    deployment: str
    operation: str
    placement: Placement
    make: Factory
    pinning: Pinning | None = None
    stand_ins: tuple[Factory, Factory] | None = None


def node_specs(config: EnsembleConfig, agreed: EnsembleSignature) -> dict[str, NodeSpec]:
    """Every node of the application, by the name that `user_config` and the graph's composition use."""
    decoding = config.transformer
    limits = transformer.TransformerSettings.part_of(decoding)
    decode = partial(transformer.JpegTransformer, limits, agreed.wanted, decoding.threads)
    method, graded = combiner.CombinerSettings.part_of(config.combiner), config.ensemble.cascade is not None
    combine = partial(combiner.Combiner, method, config.weights, graded=graded)
    label = partial(labeler.Labeler, labeler.LabelerSettings.part_of(config.labeler), agreed.labels)

    def predict(member: MemberConfig) -> Factory:
        gets = agreed.interface(member.name)
        shared_by, limit = sharing(config, member), config.ingress.max_batch_size
        return partial(make, fixed(member, agreed), shared_by, config.model_repository, gets, limit)

    return {
        TRANSFORMER: NodeSpec(
            TRANSFORMER,
            transformer.OPERATION,
            decoding.placement,
            partial(decode, decoding.isolate),
            stand_ins=(partial(decode, decoding.isolate), partial(decode, "all")),
        ),
        **{
            m.name: NodeSpec(m.deployment_name, m.operation, m.placement, predict(m), pinning(config, m.name))
            for m in config.nodes
        },
        COMBINER: NodeSpec(
            COMBINER, combiner.OPERATION, config.combiner.placement, combine, stand_ins=(combine, combine)
        ),
        LABELER: NodeSpec(LABELER, labeler.OPERATION, config.labeler.placement, label, stand_ins=(label, label)),
    }
