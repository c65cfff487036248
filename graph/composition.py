"""How the nodes are joined, with every feature in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Flow, Graph, Node
from deployments.ingress.single_member import MemberModelInfo, SingleMemberGraph
from deployments.pipeline.member_client import Member, QuorumSettings
from deployments.pipeline.pipeline import Combined, Ensemble, Intercepted, Interceptor, Pipeline
from deployments.serving.spec import BuiltGraph, Nodes
from deployments.transformer.transformer import JpegTransformer
from graph.feature import Feature, Site, Stage, Wanted
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# Joins the nodes, and puts every feature in its place.
Compose = Callable[[Nodes, Sequence[Feature]], Graph]


def ensemble(
    pixels: Mapping[str, str], quorum: QuorumSettings, nodes: Nodes, features: Sequence[Feature] = ()
) -> Graph:
    """Join transformer, members, combiner and labeler, with every feature in its place.

    `pixels` has the key of the pixels that each member takes, by the member's name.
    """
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    combiner, transformer = nodes[COMBINER], nodes[TRANSFORMER]
    plain: Node[Any, Any] = Ensemble(members, None, quorum)
    asker = _wrapped(features, Stage("asker", members=members, combiner=combiner), plain)
    # In another process it makes all: decoded images are larger than pixels.
    if isinstance(transformer, JpegTransformer) and isinstance(asker, Flow) and asker.first_pixels is not None:
        transformer.defer_others(asker.first_pixels)
    predicts = _wrapped(features, Stage("predictions"), Pipeline(transformer, asker))
    return Pipeline(predicts, combiner if asker is plain else Combined(combiner), nodes[LABELER])


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
    site = Site(application, replica, placed, versions=versions)
    nodes = placed
    for feature, settings in wanted:
        made = feature(config, agreed, dataclasses.replace(site, settings=settings))
        nodes = {name: made.wrap(Stage("node", name), node) for name, node in nodes.items()}
        members = {name: made.wrap(Stage("node", name), node) for name, node in site.nodes.items()}
        members = {name: made.wrap(Stage("member", name), node) for name, node in members.items()}
        site = dataclasses.replace(site, nodes=members)
        features.append(made)
    interceptors = [each.interceptor for each in features if each.interceptor is not None]
    of_members = [each for each in interceptors if each.of_members]
    return BuiltGraph(
        _intercepted(compose(site.nodes, features), interceptors),
        {
            name: _intercepted(SingleMemberGraph(nodes[name], info.size, agreed.labels), of_members)
            for name, info in infos.items()
        },
        features,
        site.left_out,
    )


def _wrapped(features: Sequence[Feature], stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
    for feature in features:
        node = feature.wrap(stage, node)
    return node


def _intercepted(graph: Graph, interceptors: Sequence[Interceptor]) -> Graph:
    return Intercepted(graph, interceptors) if interceptors else graph
