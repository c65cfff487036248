"""How the nodes are joined, with every capability in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deployments.contract.nodes import Graph, Node
from graph.capabilities.capability import Capability, Nodes
from graph.flows.ensemble import Ensemble
from graph.flows.member import Member
from graph.flows.patience import AskingSettings
from graph.flows.pipeline import Pipeline
from graph.names import COMBINER, LABELER, TRANSFORMER


def ensemble(
    pixels: Mapping[str, str], asking: AskingSettings, nodes: Nodes, capabilities: Sequence[Capability] = ()
) -> Graph:
    """Transformer, members, combiner and labeler, with every capability in its place.

    `pixels` has the key of the pixels that each member takes, by the member's name.
    """
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    combiner, labeler = nodes[COMBINER], nodes[LABELER]
    keeping = [each for each in capabilities if each.keeps_predictions]
    combined = not keeping
    askers = (each.asker(members, combiner, combined) for each in capabilities)
    asker = next((asker for asker in askers if asker is not None), None)
    if asker is None:
        asker = Ensemble(members, combiner if combined else None, asking)
    for each in capabilities:
        asker = each.around_asker(asker)
    predicts: Node[Any, Any] = Pipeline(nodes[TRANSFORMER], asker)
    for each in keeping:
        predicts = each.around_predictions(predicts)
    return Pipeline(predicts, labeler) if combined else Pipeline(predicts, combiner, labeler)
