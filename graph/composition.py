"""How the nodes are joined, with every feature in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Flow, Graph, Node
from deployments.ingress.single_member import MemberModelInfo, SingleMemberGraph
from deployments.pipeline.member_client import Member, QuorumSettings
from deployments.pipeline.pipeline import Ensemble, Intercepted, Interceptor, Pipeline
from deployments.serving.spec import BuiltGraph, Nodes
from deployments.transformer.transformer import JpegTransformer
from graph.feature import Feature, Site, Wanted
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# Joins the nodes, and puts every feature in its place.
Compose = Callable[[Nodes, Sequence[Feature]], Graph]


def ensemble(
    pixels: Mapping[str, str], asking: QuorumSettings, nodes: Nodes, features: Sequence[Feature] = ()
) -> Graph:
    """Join transformer, members, combiner and labeler, with every feature in its place.

    `pixels` has the key of the pixels that each member takes, by the member's name.
    """
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    combiner, labeler = nodes[COMBINER], nodes[LABELER]
    keeping = [each for each in features if each.keeps_predictions]
    combined = not keeping
    askers = (each.asker(members, combiner, combined) for each in features)
    asker = next((asker for asker in askers if asker is not None), None)
    if asker is None:
        asker = Ensemble(members, combiner if combined else None, asking)
    transformer = nodes[TRANSFORMER]
    # In another process it makes all: decoded images are larger than pixels.
    if isinstance(transformer, JpegTransformer) and isinstance(asker, Flow) and asker.first_pixels is not None:
        transformer.defer_others(asker.first_pixels)
    for each in features:
        asker = each.around_asker(asker)
    predicts: Node[Any, Any] = Pipeline(transformer, asker)
    for each in keeping:
        predicts = each.around_predictions(predicts)
    return Pipeline(predicts, labeler) if combined else Pipeline(predicts, combiner, labeler)


def build_graph(
    config: EnsembleConfig,
    agreed: EnsembleSignature,
    wanted: Sequence[Wanted],
    compose: Compose,
    infos: Mapping[str, MemberModelInfo],
    placed: Nodes,
    application: str,
    replica: str,
    versions: dict[str, str],
) -> BuiltGraph:
    """Make the features, and join the nodes, which are placed already; for `versions` see `Site`."""
    features: list[Feature] = []
    loaded: dict[str, int] = {}
    nodes, members = placed, placed
    for feature, settings in wanted:
        made = feature(config, agreed, Site(application, replica, members, versions, loaded, settings))
        nodes = {**nodes, **made.nodes}
        members = {**members, **made.nodes, **made.members}
        features.append(made)
    interceptors = [each.interceptor for each in features if each.interceptor is not None]
    of_members = [each for each in interceptors if each.of_members]
    return BuiltGraph(
        _intercepted(compose(members, features), interceptors),
        {
            name: _intercepted(SingleMemberGraph(nodes[name], info.size, agreed.labels), of_members)
            for name, info in infos.items()
        },
        tuple(features),
        next((each.knows for each in features if each.keeps_predictions), None),
    )


def _intercepted(graph: Graph, interceptors: Sequence[Interceptor]) -> Graph:
    return Intercepted(graph, interceptors) if interceptors else graph
